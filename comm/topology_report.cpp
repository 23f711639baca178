// topology_report(): hwloc's picture in words. Looks at the whole host, which takes longer than
// making a communicator, and so is not part of that.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <vector>

#include "comm/device/backend.hpp"
#include "comm/setup/link_profile.hpp"
#include "comm/topology/cpus.hpp"
#include "comm/topology/topology.hpp"
#include "comm/tuner/profile.hpp"
#include "kernels/host/cpu_mask.hpp"
#include "rondo/communicator.hpp"
#include "transport/cuda_ipc/reach.hpp"

namespace rondo {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

constexpr hwloc_obj_type_t kCaches[] = {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE,
                                        HWLOC_OBJ_L4CACHE};

Topology load() {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return nullptr;
  Topology loaded(topology);
  return hwloc_topology_load(topology) == 0 ? std::move(loaded) : nullptr;
}

std::string list_of(hwloc_const_bitmap_t set) {
  std::vector<char> text(4096);
  hwloc_bitmap_list_snprintf(text.data(), text.size(), set);
  return text.data();
}

std::string size_text(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30)
    return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
  if (bytes >= uint64_t{1} << 20)
    return fmt::format("{:.4g} MiB", static_cast<double>(bytes) / (1 << 20));
  return fmt::format("{:.4g} KiB", static_cast<double>(bytes) / 1024);
}

std::vector<hwloc_obj_t> objects(const Topology& topology, hwloc_obj_type_t type) {
  std::vector<hwloc_obj_t> found;
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(topology.get(), type, object)) != nullptr;) {
    found.push_back(object);
  }
  return found;
}

/// "2 of 512 KiB: CPUs 0 | 1".
std::string line_of(const char* what, const std::vector<hwloc_obj_t>& all, uint64_t bytes) {
  std::string text = fmt::format("  {:<9} {}", what, all.size());
  if (bytes > 0) text += " of " + size_text(bytes);
  for (size_t i = 0; i < all.size(); ++i) {
    text += (i == 0 ? ": CPUs " : " | ") + list_of(all[i]->cpuset);
  }
  return text + "\n";
}

std::string host_text(const Topology& topology) {
  const topology::Host& host = topology::host();
  std::string text = fmt::format("host: {} CPU{}, {} last-level cache{} of {}\n", host.cpus,
                                 host.cpus == 1 ? "" : "s", host.llc_count,
                                 host.llc_count == 1 ? "" : "s", size_text(host.llc_bytes));
  text += line_of("packages", objects(topology, HWLOC_OBJ_PACKAGE), 0);
  const auto nodes = objects(topology, HWLOC_OBJ_NUMANODE);
  text += line_of("NUMA", nodes, nodes.empty() ? 0 : nodes[0]->attr->numanode.local_memory);
  for (const hwloc_obj_type_t level : kCaches) {
    const auto caches = objects(topology, level);
    if (caches.empty()) continue;
    char name[16];
    hwloc_obj_type_snprintf(name, sizeof(name), caches[0], 0);
    text += line_of(name, caches, caches[0]->attr->cache.size);
  }
  text += line_of("cores", objects(topology, HWLOC_OBJ_CORE), 0);
  return text;
}

std::string list_of(const std::vector<int>& cpus) {
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  for (const int cpu : cpus) hwloc_bitmap_set(set, static_cast<unsigned>(cpu));
  std::string text = list_of(set);
  hwloc_bitmap_free(set);
  return text;
}

std::string usable_text(const std::vector<int>& allowed, int granted) {
  return fmt::format(
      "this process: {} CPU{} allowed ({}), control group grants {}\n", allowed.size(),
      allowed.size() == 1 ? "" : "s", list_of(allowed),
      granted == INT_MAX ? "all of their time" : fmt::format("the time of {} (cpu.max)", granted));
}

/// The ranks, other than `rank`, whose CPUs lie under `object`.
std::vector<int> ranks_under(hwloc_obj_t object, int rank, const std::vector<int>& cpus) {
  std::vector<int> ranks;
  for (int other = 0; other < static_cast<int>(cpus.size()); ++other) {
    const auto cpu = static_cast<unsigned>(cpus[static_cast<size_t>(other)]);
    if (other != rank && hwloc_bitmap_isset(object->cpuset, cpu) != 0) ranks.push_back(other);
  }
  return ranks;
}

/// What `rank`, on its CPU, shares with whom.
std::string sharing_text(const Topology& topology, int rank, const std::vector<int>& cpus) {
  std::string text = fmt::format("  rank {}: CPU {}", rank, cpus[static_cast<size_t>(rank)]);
  hwloc_obj_t object = hwloc_get_pu_obj_by_os_index(
      topology.get(), static_cast<unsigned>(cpus[static_cast<size_t>(rank)]));
  for (; object != nullptr; object = object->parent) {
    const bool cache = hwloc_obj_type_is_cache(object->type) != 0;
    if (!cache && object->type != HWLOC_OBJ_CORE && object->type != HWLOC_OBJ_PACKAGE) continue;
    const std::vector<int> others = ranks_under(object, rank, cpus);
    char name[32];
    hwloc_obj_type_snprintf(name, sizeof(name), object, 0);
    text += others.empty() ? fmt::format("; {} alone", name)
                           : fmt::format("; {} with {}", name, fmt::join(others, ","));
  }
  return text + "\n";
}

std::string placement_text(const Topology& topology, int ranks, std::vector<int> allowed) {
  if (ranks > static_cast<int>(allowed.size())) {
    return fmt::format("ranks: {} on {} CPUs are not pinned, and take turns\n", ranks,
                       allowed.size());
  }
  // As rondo-perf pins them.
  allowed.resize(static_cast<size_t>(ranks));
  std::string text = "ranks, by their number on this host, as rondo-perf pins them:\n";
  for (int rank = 0; rank < ranks; ++rank) text += sharing_text(topology, rank, allowed);
  return text;
}

std::string profile_text(const tuner::LinkProfile& p) {
  const auto rate = [](double us_per_byte) {
    return us_per_byte > 0
               ? fmt::format("{:.4g} us/byte ({:.3g} GB/s)", us_per_byte, 1e-3 / us_per_byte)
               : std::string("0 us/byte");
  };
  std::string text = fmt::format("link profile: {}\n", p.name);
  const auto line = [&](const char* name, const std::string& value, const char* meaning) {
    text += fmt::format("  {:<25} {:<32} {}\n", name, value, meaning);
  };
  line("overhead_us", fmt::format("{:.4g} us", p.overhead_us), "of a call, whatever it does");
  line("alpha_us", fmt::format("{:.4g} us", p.alpha_us), "of a hop, from flag to waiting rank");
  line("peer_us", fmt::format("{:.4g} us", p.peer_us), "for each further peer in a hop");
  line("slot_us_per_byte", rate(p.slot_us_per_byte), "into a slot, and again out of it");
  line("one_way_us_per_byte", rate(p.one_way_us_per_byte), "more, where a wire is used one way");
  line("memory_cached_us_per_byte", rate(p.memory_cached_us_per_byte), "of buffers in the cache");
  line("memory_us_per_byte", rate(p.memory_us_per_byte), "of buffers beyond it");
  line("reduce_us_per_byte", rate(p.reduce_us_per_byte), "to fold one byte into another");
  line("process_copy_us", fmt::format("{:g} us", p.process_copy_us),
       "of a copy between processes by the kernel");
  line("process_copy_us_per_byte", rate(p.process_copy_us_per_byte),
       "of it, beyond the memory's time");
  line("parallel_ranks",
       p.parallel_ranks == 0 ? std::string("all") : std::to_string(p.parallel_ranks),
       "can run at the same time");
  line("llc_bytes", size_text(p.llc_bytes), "last-level cache that the ranks share");
  line("slot_bytes", size_text(p.slot_bytes), "of a slot");
  line("slots", std::to_string(p.slots), "of a link");
  line("wire_alpha_us", fmt::format("{:.4g} us", p.wire_alpha_us),
       "more, to a rank on another host");
  line("wire_message_us", fmt::format("{:.4g} us", p.wire_message_us),
       "of a message between hosts");
  line("wire_us_per_byte", rate(p.wire_us_per_byte),
       "on the link of a host, which its ranks share");
  line("wire_both_us_per_byte", rate(p.wire_both_us_per_byte), "more, where both ways are used");
  return text;
}

/// Every GPU, how each reaches each, and what a communicator on all of them would be laid out by.
Result<std::string> gpus_text(const device::GpuBackend& backend) {
  using transport::cuda_ipc::Reach;
  device::CudaCalls& cuda = *backend.cuda;
  auto count = RONDO_TRY(cuda.device_count());
  std::string text = fmt::format("GPUs: {}\n", count);
  for (int device = 0; device < count; ++device) {
    auto info = RONDO_TRY(cuda.device_info(device));
    text += fmt::format("  {:<9} {}, {} multiprocessors, {}, compute capability {}.{}{}\n", device,
                        info.name, info.multiprocessors, size_text(info.memory_bytes), info.major,
                        info.minor, info.computes ? "" : ", in a mode that forbids computing");
  }
  Reach slowest = Reach::kSameGpu;
  for (int device = 0; device < count; ++device) {
    for (int peer = 0; peer < count; ++peer) {
      if (peer == device) continue;
      auto reach = RONDO_TRY(transport::cuda_ipc::reach_between(cuda, device, peer));
      slowest = std::max(slowest, reach);
      text += fmt::format("  {:<9} {}\n", fmt::format("{} to {}", device, peer), name(reach));
    }
  }
  return text +
         fmt::format(
             "  link profile of a communicator on all of them: {}\n"
             "  with ranks on other hosts, too, data between hosts pass through pinned memory\n",
             tuner::device_profile(slowest, 1, 1, 1).name);
}

std::string gpus_text() {
  auto backend = device::open_backend();
  if (!backend.ok()) return fmt::format("GPUs: none ({})\n", backend.status().message());
  auto text = gpus_text(*backend);
  return text.ok() ? *text : fmt::format("GPUs: {}\n", text.status().message());
}

}  // namespace

std::string topology_report(int ranks, const Config& config) try {
  const Topology topology = load();
  if (!topology) return "hwloc cannot see this host\n";
  const std::vector<int> allowed = kernels::list_cpus(kernels::allowed_cpus());
  const int granted = topology::granted_cpus();
  const int cpus = std::clamp(static_cast<int>(allowed.size()), 1, std::max(granted, 1));
  auto profile = comm::host_profile(comm::links_of(config));
  if (profile.ok()) {
    profile = comm::link_profile({.ranks = ranks,
                                  .channels = std::max(config.channels, 1),
                                  .cpus = cpus,
                                  .links = *profile,
                                  .pace = comm::pace_of(config)});
  }
  return host_text(topology) + usable_text(allowed, granted) + gpus_text() +
         placement_text(topology, ranks, allowed) +
         (profile.ok() ? profile_text(*profile) : profile.status().message() + "\n");
} catch (...) {
  return "out of memory\n";  // short: no heap
}

}  // namespace rondo
