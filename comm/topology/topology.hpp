// This host's caches and CPUs, from hwloc. Knows no ranks.
#pragma once

#include <cstddef>

namespace rondo::topology {

struct Host {
  size_t llc_bytes;  // of one last-level cache; 32 MiB if hwloc finds none
  int llc_count;
  int cpus;  // of the whole host, allowed or not
};

/// Looked up once per process (some milliseconds). Thread-safe.
const Host& host();

}  // namespace rondo::topology
