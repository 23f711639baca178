#include "comm/topology/binding.hpp"

#include <hwloc.h>

#include <cstdint>
#include <utility>

namespace rondo::topology {
namespace {

/// Only CPUs that the process may use, so that a share can be divided again.
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

std::vector<kernels::CpuMask> share_cpus(int ranks) {
  std::vector<kernels::CpuMask> shares;
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return shares;
  if (load_allowed(topology)) {
    const int cpus = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    const int each = cpus / ranks;
    for (int rank = 0; each > 0 && rank < ranks; ++rank) {
      kernels::CpuMask share;
      const int first = static_cast<int>(int64_t{rank} * cpus / ranks);
      for (int cpu = first; cpu < first + each; ++cpu) {
        // Logical indices: neighbours share a core, then a cache, then a package.
        const auto index = static_cast<unsigned>(cpu);
        const hwloc_obj_t unit = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, index);
        kernels::add_cpu(share, static_cast<int>(unit->os_index));
      }
      shares.push_back(std::move(share));
    }
  }
  hwloc_topology_destroy(topology);
  return shares;
}

}  // namespace rondo::topology
