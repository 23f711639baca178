// See introduce.hpp.
#include "comm/setup/introduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <type_traits>

#include "comm/base/refuse.hpp"
#include "comm/topology/cpus.hpp"
#include "comm/tuner/default_profile.hpp"
#include "comm/tuner/profile_file.hpp"
#include "kernels/host/cpu_mask.hpp"
#include "transport/memory/arena.hpp"

namespace rondo::comm {
namespace {

constexpr uint32_t kVersion = 13;
static_assert(std::is_trivially_copyable_v<RankFacts>);

bool names_file(const std::string& links) { return !links.empty() && links != tuner::kBuiltIn; }

Result<RankFacts> own_facts(const Config& config, bool links_named, int ranks) {
  auto arena = transport::export_arena(ranks);
  if (!arena.ok()) return arena.status();
  RankFacts own{};
  own.version = kVersion;
  own.channels = config.channels;
  own.max_channels = config.max_channels;
  own.slots = static_cast<uint32_t>(config.slots);
  own.algorithm = static_cast<uint32_t>(config.algorithm);
  own.reproducible = config.reproducible ? 1 : 0;
  own.wrapping_averages = config.wrapping_averages ? 1 : 0;
  own.links_named = links_named ? 1 : 0;
  own.slot_bytes = config.slot_bytes;
  std::random_device random;
  own.token = static_cast<uint64_t>(random()) << 32 | random();
  config.pace.copy(own.pace, kPaceChars - 1);
  own.arena_bytes = arena->fd >= 0 ? arena->bytes : 0;
  own.device = config.device;
  own.granted_cpus = topology::granted_cpus();
  own.probe = transport::shm::own_probe();
  return own;
}

/// Of a host: those of `masks`, by rank. Ranks in other control groups go by the first one's.
int count_cpus(std::span<const int> members, const std::vector<std::string>& masks,
               const std::vector<RankFacts>& facts) {
  std::vector<std::string> own;
  for (const int rank : members) own.push_back(masks[static_cast<size_t>(rank)]);
  const int granted = facts[static_cast<size_t>(members.front())].granted_cpus;
  return std::clamp(topology::count_cpus(own), 1, std::max(granted, 1));
}

/// `blobs` become what follows the facts and the mask: of rank 0 the link profile.
Status unpack(std::vector<std::string>& blobs, int rank, const base::HostMap& hosts,
              Introduced& made) {
  std::vector<RankFacts>& into = made.ranks;
  std::vector<std::string> masks;
  into.resize(blobs.size());
  for (size_t r = 0; r < blobs.size(); ++r) {
    if (blobs[r].size() >= sizeof(RankFacts)) {
      std::memcpy(&into[r], blobs[r].data(), sizeof(RankFacts));
    }
    const size_t beyond_facts = blobs[r].size() - std::min(blobs[r].size(), sizeof(RankFacts));
    if (blobs[r].size() < sizeof(RankFacts) || into[r].version != kVersion ||
        beyond_facts < into[r].cpu_mask_bytes) {
      return {Code::kBootstrap,
              fmt::format("rank {} runs another version of rondo than rank {}", r, rank)};
    }
    masks.push_back(blobs[r].substr(sizeof(RankFacts), into[r].cpu_mask_bytes));
    blobs[r].erase(0, sizeof(RankFacts) + into[r].cpu_mask_bytes);
  }
  for (int host = 0; host < hosts.hosts(); ++host) {
    const int ranks = static_cast<int>(hosts.ranks_on(host).size());
    const int cpus = count_cpus(hosts.ranks_on(host), masks, into);
    if (host == 0 || ranks * made.busiest.cpus > made.busiest.ranks * cpus) {
      made.busiest = {.ranks = ranks, .cpus = cpus};
    }
    if (host == hosts.host_of(rank)) made.cpus = cpus;
  }
  return {};
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

Result<Introduced> introduce(Bootstrap& bootstrap, Config& config,
                             const std::optional<AgreedLinks>& inherited) {
  const base::HostMap& hosts = bootstrap.hosts();
  auto own = own_facts(config, inherited ? inherited->named : names_file(config.links),
                       static_cast<int>(hosts.ranks_on(hosts.host_of(bootstrap.rank())).size()));
  if (!own.ok()) return own.status();
  const std::string cpus = kernels::allowed_cpus();
  own->cpu_mask_bytes = static_cast<uint32_t>(cpus.size());
  std::string blob(reinterpret_cast<const char*>(&*own), sizeof(RankFacts));
  blob += cpus;
  if (bootstrap.rank() == 0) {  // its link profile comes last
    auto links = inherited ? inherited->profile : host_profile(config.links);
    if (!links.ok()) return links.status();
    blob += tuner::to_json_text(*links);
  }
  auto blobs = bootstrap.all_gather(blob);
  if (!blobs.ok()) return blobs.status();
  Introduced made{};
  RONDO_TRY(unpack(*blobs, bootstrap.rank(), hosts, made));
  auto links = tuner::parse_profile(blobs->front(), "of rank 0");
  if (!links.ok()) return links.status();
  RONDO_TRY(check_devices(made.ranks));
  adopt(made.ranks.front(), config);
  made.links = {.profile = std::move(*links), .named = made.ranks[0].links_named != 0};
  made.token = made.ranks[0].token;
  made.same_process =
      std::ranges::all_of(bootstrap.peers(), [](const Peer& peer) { return peer.same_process; });
  return made;
}

}  // namespace rondo::comm
