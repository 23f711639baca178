// How many CPUs the ranks of a host have: by the affinity masks of their threads, and by the quotas
// of their control groups.
#pragma once

#include <span>
#include <string>

namespace rondo::topology {

/// The CPUs that are in any of such masks (kernels/host/cpu_mask.hpp).
int count_cpus(std::span<const std::string> masks);

/// CPUs' worth of time that the control groups of this process grant it, rounded up: the least of
/// its own group's quota and those of all groups around it, of version 1 or 2; INT_MAX: no limit.
/// `root`: of the file system, for tests.
int granted_cpus(const std::string& root = "");

}  // namespace rondo::topology
