// See sizes.hpp.
#include "comm/setup/sizes.hpp"

#include <algorithm>

namespace rondo::comm {
namespace {

// A paced slot carries its due time after the payload (pace.hpp).
constexpr size_t kPaceTrailerBytes = 8;

/// What slots go round in, so that neither end's second-level cache (1 or 2 MiB) holds those that
/// come next: storing into a line that the peer has is what slots cost. All rings of a host shall
/// stay in its last-level cache: two-shot, which most all-reduces are, uses every link of every
/// channel. Ranks that take turns on a core share its caches: there slots that come next are wanted
/// in them.
size_t ring_bytes(const CpuShares& shares, const Config& config, int channels, int local_ranks) {
  constexpr size_t kRing = size_t{3} << 20, kAllRings = size_t{12} << 20;
  const bool taking_turns = shares.busiest.ranks * channels > shares.busiest.cpus;
  const bool chosen = config.slots > 0 || config.slot_bytes > 0 || !config.pace.empty();
  const auto links = static_cast<size_t>(local_ranks) * static_cast<size_t>(local_ranks - 1);
  if (taking_turns || chosen || links == 0) return 0;
  return std::min(kRing, kAllRings / (links * static_cast<size_t>(channels)));
}

}  // namespace

HostSizes size_up(const CpuShares& shares, const tuner::LinkProfile& links, const Config& config,
                  const base::HostMap& hosts, int rank) {
  const int local_ranks = static_cast<int>(hosts.ranks_on(hosts.host_of(rank)).size());
  const int channels = std::max(config.channels, 1);
  const bool paced = !config.pace.empty();
  tuner::LinkProfile profile =  // rank 0 has checked the pace
      *link_profile({.ranks = shares.busiest.ranks,
                     .channels = channels,
                     .cpus = shares.busiest.cpus,
                     .links = links,
                     .pace = config.pace,
                     .ranks_elsewhere = hosts.ranks() - shares.busiest.ranks});
  const uint32_t depth = config.slots > 0 ? static_cast<uint32_t>(config.slots) : profile.slots;
  const size_t slot_bytes = config.slot_bytes > 0 ? config.slot_bytes : profile.slot_bytes;
  return {.ranks = hosts.ranks(),
          .channels = channels,
          .depth = depth,
          .slot_bytes = slot_bytes,
          .profile = std::move(profile),
          .paced = paced,
          .local_ranks = local_ranks,
          .cpus = shares.cpus,
          .fifos = {.ranks = local_ranks,
                    .channels = channels + 1,  // the last one is for point-to-point messages
                    .depth = depth,
                    .slot_bytes = slot_bytes + (paced ? kPaceTrailerBytes : 0),
                    .publish_depth = depth,
                    .publish_slot_bytes = slot_bytes,
                    .ring_bytes = ring_bytes(shares, config, channels, local_ranks)}};
}

}  // namespace rondo::comm
