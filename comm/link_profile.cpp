// See link_profile.hpp.
#include "comm/link_profile.hpp"

#include "transport/pace/pace.hpp"

namespace rondo::comm {

bool is_oversubscribed(const Surroundings& where) {
  return where.ranks * where.channels > where.cpus;
}

Result<tuner::LinkProfile> link_profile(const Surroundings& where) {
  tuner::LinkProfile profile = is_oversubscribed(where) ? tuner::oversubscribed_profile(where.cpus)
                                                        : tuner::shared_memory_profile();
  if (!where.pace.empty()) {
    auto pacing = transport::parse_pace(where.pace);
    if (!pacing.ok()) return pacing.status();
    profile = tuner::wire_profile(pacing->bytes_per_second, pacing->latency_seconds);
  }
  profile.llc_bytes = where.llc_bytes;
  return tuner::fit_to_memory(profile, where.ranks, where.channels);
}

}  // namespace rondo::comm
