// The CPUs of each rank of a host, when a launcher divides them.
#pragma once

#include <vector>

#include "kernels/host/cpu_mask.hpp"

namespace rondo::topology {

/// Divides the CPUs that this process may use among `ranks`: equal parts of neighbouring CPUs; a
/// remainder is unused. Empty if there are fewer CPUs than ranks, or hwloc does not know. Takes
/// some milliseconds.
std::vector<kernels::CpuMask> share_cpus(int ranks);

}  // namespace rondo::topology
