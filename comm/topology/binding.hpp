// Which CPUs each rank of a host is given when a launcher shares them out.
#pragma once

#include <sched.h>

#include <vector>

namespace rondo::topology {

/// The CPUs that this process may use, divided among `ranks`: everybody has as many, of neighbours;
/// what cannot be divided is nobody's. Empty where there are fewer CPUs than ranks, or hwloc cannot
/// say. Some milliseconds.
std::vector<cpu_set_t> share_cpus(int ranks);

}  // namespace rondo::topology
