// See sizes.hpp.
#include "comm/setup/sizes.hpp"

#include <algorithm>

namespace rondo::comm {
namespace {

// A paced slot carries its due time after the payload (pace.hpp).
constexpr size_t kPaceTrailerBytes = 8;

}  // namespace

HostSizes size_up(const Introduced& introduced, const Config& config, const base::HostMap& hosts,
                  int rank) {
  const int local_ranks = static_cast<int>(hosts.ranks_on(hosts.host_of(rank)).size());
  const int channels = std::max(config.channels, 1);
  const bool paced = !config.pace.empty();
  tuner::LinkProfile profile =  // rank 0 has checked the pace
      *link_profile({.ranks = introduced.busiest.ranks,
                     .channels = channels,
                     .cpus = introduced.busiest.cpus,
                     .links = introduced.links.profile,
                     .pace = config.pace,
                     .ranks_elsewhere = hosts.ranks() - introduced.busiest.ranks});
  const uint32_t depth = config.slots > 0 ? static_cast<uint32_t>(config.slots) : profile.slots;
  const size_t slot_bytes = config.slot_bytes > 0 ? config.slot_bytes : profile.slot_bytes;
  return {.ranks = hosts.ranks(),
          .channels = channels,
          .depth = depth,
          .slot_bytes = slot_bytes,
          .profile = std::move(profile),
          .paced = paced,
          .local_ranks = local_ranks,
          .cpus = introduced.cpus,
          .fifos = {.ranks = local_ranks,
                    .channels = channels + 1,  // the last one is for point-to-point messages
                    .depth = depth,
                    .slot_bytes = slot_bytes + (paced ? kPaceTrailerBytes : 0),
                    .publish_depth = depth,
                    .publish_slot_bytes = slot_bytes}};
}

}  // namespace rondo::comm
