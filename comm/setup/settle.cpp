// See settle.hpp.
#include "comm/setup/settle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "comm/base/refuse.hpp"
#include "comm/topology/cpus.hpp"
#include "comm/tuner/profile_file.hpp"

namespace rondo::comm {
namespace {

Result<std::vector<FullFacts>> unpack_all(std::span<const Parcel> parcels, int rank) {
  std::vector<FullFacts> all;
  for (const Parcel& each : parcels) {
    auto facts = unpack_facts(each.bytes);
    if (!facts) {
      return Status(
          Code::kBootstrap,
          fmt::format("rank {} runs another version of rondo than rank {}", all.size(), rank));
    }
    all.push_back(std::move(*facts));
  }
  return all;
}

/// That the ranks of a host may use. Ranks in other control groups go by the first one's.
int count_cpus(std::span<const int> members, const std::vector<FullFacts>& facts) {
  std::vector<std::string> masks;
  for (const int rank : members) masks.push_back(facts[static_cast<size_t>(rank)].cpu_mask);
  const int granted = facts[static_cast<size_t>(members.front())].rank.granted_cpus;
  return std::clamp(topology::count_cpus(masks), 1, std::max(granted, 1));
}

CpuShares share_cpus(const std::vector<FullFacts>& facts, const base::HostMap& hosts, int rank) {
  CpuShares shares{};
  for (int host = 0; host < hosts.hosts(); ++host) {
    const int ranks = static_cast<int>(hosts.ranks_on(host).size());
    const int cpus = count_cpus(hosts.ranks_on(host), facts);
    if (host == 0 || ranks * shares.busiest.cpus > shares.busiest.ranks * cpus) {
      shares.busiest = {.ranks = ranks, .cpus = cpus};
    }
    if (host == hosts.host_of(rank)) shares.cpus = cpus;
  }
  return shares;
}

Status check_devices(const std::vector<RankFacts>& ranks) {
  for (size_t r = 1; r < ranks.size(); ++r) {
    if ((ranks[r].device < 0) == (ranks[0].device < 0)) continue;
    return refuse(
        fmt::format("Config::device is {} on rank 0 and {} on rank {}: every rank has a "
                    "device, or none",
                    ranks[0].device, ranks[r].device, r));
  }
  return {};
}

void adopt(const RankFacts& settings, Config& config) {
  config.channels = settings.channels;
  config.max_channels = settings.max_channels;
  config.slots = static_cast<int>(settings.slots);
  config.slot_bytes = settings.slot_bytes;
  config.algorithm = static_cast<Algorithm>(settings.algorithm);
  config.reproducible = settings.reproducible != 0;
  config.wrapping_averages = settings.wrapping_averages != 0;
  config.pace = settings.pace;
}

}  // namespace

Result<Agreement> settle(std::span<const Parcel> facts, const base::HostMap& hosts, int rank,
                         Config& config) {
  const auto all = RONDO_TRY(unpack_all(facts, rank));
  Agreement settled{};
  for (const FullFacts& each : all) settled.ranks.push_back(each.rank);
  settled.links = {.profile = RONDO_TRY(tuner::parse_profile(all[0].links, "of rank 0")),
                   .named = all[0].rank.links_named != 0};
  RONDO_TRY(check_devices(settled.ranks));
  adopt(settled.ranks[0], config);
  settled.sizes = size_up(share_cpus(all, hosts, rank), settled.links.profile, config, hosts, rank);
  return settled;
}

}  // namespace rondo::comm
