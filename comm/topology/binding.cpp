#include "comm/topology/binding.hpp"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>

#include <climits>

namespace rondo::topology {
namespace {

/// Only what the process may use, so that a share of a share is one.
bool load_allowed(hwloc_topology_t topology) {
  if (hwloc_topology_load(topology) != 0) return false;
  hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
  const bool restricted = allowed != nullptr &&
                          hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_PROCESS) == 0 &&
                          hwloc_topology_restrict(topology, allowed, 0) == 0;
  hwloc_bitmap_free(allowed);
  return restricted;
}

}  // namespace

std::vector<cpu_set_t> share_cpus(int ranks) {
  std::vector<cpu_set_t> shares;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return shares;
  if (load_allowed(topology) && ranks <= hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU)) {
    std::vector<hwloc_bitmap_t> sets(static_cast<size_t>(ranks));
    hwloc_obj_t root = hwloc_get_root_obj(topology);
    if (hwloc_distrib(topology, &root, 1, sets.data(), static_cast<unsigned>(ranks), INT_MAX, 0) ==
        0) {
      for (hwloc_bitmap_t set : sets) {
        cpu_set_t share;
        hwloc_cpuset_to_glibc_sched_affinity(topology, set, &share, sizeof share);
        shares.push_back(share);
        hwloc_bitmap_free(set);
      }
    }
  }
  hwloc_topology_destroy(topology);
  return shares;
}

}  // namespace rondo::topology
