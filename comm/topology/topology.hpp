// What hwloc says about this host, as far as rondo decides by it. Knows no ranks.
#pragma once

#include <cstddef>

namespace rondo::topology {

struct Host {
  size_t llc_bytes;  // of one last-level cache; 32 MiB where hwloc finds none
  int llc_count;
  int cpus;  // of the whole host, whoever may use them
};

/// Looked up once per process (some milliseconds). Thread-safe.
const Host& host();

}  // namespace rondo::topology
