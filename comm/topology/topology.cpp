#include "comm/topology/topology.hpp"

#include <hwloc.h>

#include <algorithm>

namespace rondo::topology {

namespace {

constexpr size_t kUnknownLlcBytes = size_t{32} << 20;

Host look() {
  Host host{.llc_bytes = kUnknownLlcBytes, .llc_count = 1, .cpus = 1};
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return host;
  // Caches and CPUs only: reading PCI and the rest would take longer than creating a communicator.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_cache_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) == 0) {
    host.cpus = std::max(1, hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU));
    for (const hwloc_obj_type_t level : {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE}) {
      const int count = hwloc_get_nbobjs_by_type(topology, level);
      if (count <= 0) continue;
      const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, level, 0);
      if (cache->attr->cache.size == 0) continue;
      host.llc_bytes = cache->attr->cache.size;
      host.llc_count = count;
      break;
    }
  }
  hwloc_topology_destroy(topology);
  return host;
}

}  // namespace

const Host& host() {
  static const Host found = look();
  return found;
}

}  // namespace rondo::topology
