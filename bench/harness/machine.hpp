// The facts about the machine that the harness needs: CPUs to pin to, the last-level cache, memory.
#pragma once

#include <cstddef>
#include <string>

namespace rondo::bench {

/// Pins the calling thread to the `rank`-th of its allowed CPUs if there is one for each of the
/// `ranks`; returns a short description. Oversubscribed ranks are left to the scheduler.
std::string pin(int rank, int ranks);

/// Private memory that this process has touched, in bytes; 0 if the system does not report it.
size_t private_memory_bytes();

/// Bytes that programs can still take before the system has to end one; the largest size if it does
/// not tell. Of this process's control groups, too, where these have limits (cgroup v2).
size_t available_memory_bytes();

/// Touches the memory, whose page faults are not to be timed, by writing zeros. False, having
/// stopped early, where the system would run out of memory: before each piece there must be as much
/// available as this rank still touches (`later_bytes` after this) and a piece for every other of the
/// `ranks` that can be here, which take theirs at the same time.
bool zero_if_available(void* memory, size_t bytes, size_t later_bytes, int ranks);

/// CPUs that the calling thread may run on; 1 if unknown.
int allowed_cpus();

/// Largest cache of CPU 0 in bytes; 32 MiB if unknown.
size_t last_level_cache_bytes();

}  // namespace rondo::bench
