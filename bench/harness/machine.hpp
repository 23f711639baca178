// What the harness must know about the machine: CPUs to pin to, the last-level cache. No topology
// beyond that.
#pragma once

#include <cstddef>
#include <string>

namespace rondo::bench {

/// Pins the calling thread to the `rank`-th of its allowed CPUs if there is one for each of the
/// `ranks`, and says in a few words what was done. Oversubscribed ranks are left to the scheduler.
std::string pin(int rank, int ranks);

/// Memory that this process has touched and shares with nobody, in bytes; 0 where the system does
/// not tell.
size_t private_memory_bytes();

/// CPUs that the calling thread may run on; 1 where that cannot be told.
int allowed_cpus();

/// Largest cache of CPU 0 in bytes; 32 MiB where the system does not tell.
size_t last_level_cache_bytes();

}  // namespace rondo::bench
