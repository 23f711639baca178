// The facts about the machine that the harness needs: CPUs to pin to, the last-level cache.
#pragma once

#include <cstddef>
#include <string>

namespace rondo::bench {

/// Pins the calling thread to the `rank`-th of its allowed CPUs if there is one for each of the
/// `ranks`; returns a short description. Oversubscribed ranks are left to the scheduler.
std::string pin(int rank, int ranks);

/// Private memory that this process has touched, in bytes; 0 if the system does not report it.
size_t private_memory_bytes();

/// CPUs that the calling thread may run on; 1 if unknown.
int allowed_cpus();

/// Largest cache of CPU 0 in bytes; 32 MiB if unknown.
size_t last_level_cache_bytes();

}  // namespace rondo::bench
