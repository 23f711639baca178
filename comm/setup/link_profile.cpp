// See link_profile.hpp.
#include "comm/setup/link_profile.hpp"

#include <string>
#include <utility>

#include "comm/bootstrap/launchers.hpp"
#include "comm/topology/topology.hpp"
#include "comm/tuner/default_profile.hpp"
#include "transport/pace/pace.hpp"

namespace rondo::comm {

Result<tuner::LinkProfile> host_profile(const std::string& path) {
  tuner::LinkProfile built_in = tuner::shared_memory_profile();
  built_in.llc_bytes = topology::host().llc_bytes;
  return tuner::find_profile(path, std::move(built_in));
}

std::string pace_of(const Config& config) {
  if (!config.pace.empty()) return config.pace;
  const std::string pace = variable("RONDO_PACE").value_or("off");
  return pace == "off" ? std::string() : pace;
}

std::string links_of(const Config& config) {
  return config.links.empty() ? variable("RONDO_LINKS").value_or("") : config.links;
}

bool is_oversubscribed(const ProfileQuery& where) {
  return where.ranks * where.channels > where.cpus;
}

Result<tuner::LinkProfile> link_profile(const ProfileQuery& where) {
  tuner::LinkProfile profile = is_oversubscribed(where)
                                   ? tuner::oversubscribed_profile(where.cpus, where.links)
                                   : where.links;
  if (!where.pace.empty()) {
    auto pacing = transport::parse_pace(where.pace);
    if (!pacing.ok()) return pacing.status();
    profile = tuner::wire_profile(pacing->bytes_per_second, pacing->latency_seconds, where.links);
    if (is_oversubscribed(where)) profile = tuner::taking_turns(profile);
  }
  if (is_oversubscribed(where)) {
    profile.name +=
        ": " + std::to_string(where.ranks * where.channels) + " on " + std::to_string(where.cpus);
  }
  // One channel more: that of point-to-point messages.
  return tuner::fit_to_memory(profile, where.ranks, where.channels + 1);
}

}  // namespace rondo::comm
