// See link_profile.hpp.
#include "comm/setup/link_profile.hpp"

#include <string>
#include <utility>

#include "comm/base/variables.hpp"
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

Result<tuner::LinkProfile> link_profile(const ProfileQuery& where) {
  tuner::RanksOnHost ranks{.ranks = where.ranks,
                           .ranks_elsewhere = where.ranks_elsewhere,
                           .channels = where.channels,
                           .cores = where.cpus};
  if (!where.pace.empty()) {
    ranks.wire = RONDO_TRY(transport::parse_pace(where.pace));
  }
  return tuner::profile_of(ranks, where.links);
}

}  // namespace rondo::comm
