// See link_profile.hpp.
#include "comm/link_profile.hpp"

#include "comm/bootstrap/launchers.hpp"
#include "comm/topology/topology.hpp"
#include "comm/tuner/profile_file.hpp"
#include "transport/pace/pace.hpp"

namespace rondo::comm {

Result<tuner::LinkProfile> host_profile(const std::string& path) {
  if (!path.empty()) return tuner::read_profile(path);
  tuner::LinkProfile links = tuner::shared_memory_profile();
  links.llc_bytes = topology::host().llc_bytes;
  return links;
}

std::string pace_of(const Config& config) {
  if (!config.pace.empty()) return config.pace;
  const std::string pace = variable("RONDO_PACE").value_or("off");
  return pace == "off" ? std::string() : pace;
}

std::string links_of(const Config& config) {
  return config.links.empty() ? variable("RONDO_LINKS").value_or("") : config.links;
}

bool is_oversubscribed(const Surroundings& where) {
  return where.ranks * where.channels > where.cpus;
}

Result<tuner::LinkProfile> link_profile(const Surroundings& where) {
  tuner::LinkProfile profile = is_oversubscribed(where)
                                   ? tuner::oversubscribed_profile(where.cpus, where.links)
                                   : where.links;
  if (!where.pace.empty()) {
    auto pacing = transport::parse_pace(where.pace);
    if (!pacing.ok()) return pacing.status();
    profile = tuner::wire_profile(pacing->bytes_per_second, pacing->latency_seconds, where.links);
  }
  // One channel more: that of point-to-point messages.
  return tuner::fit_to_memory(profile, where.ranks, where.channels + 1);
}

}  // namespace rondo::comm
