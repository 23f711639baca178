// The public face of the tuner's fit.
#include <vector>

#include "comm/base/guarded.hpp"
#include "comm/topology/topology.hpp"
#include "comm/tuner/default_profile.hpp"
#include "comm/tuner/fit.hpp"
#include "comm/tuner/profile_file.hpp"
#include "rondo/communicator.hpp"

namespace rondo {

Result<std::string> fit_link_profile(std::span<const LinkTiming> timings,
                                     std::span<const int> hosts, const std::string& name,
                                     const std::string& before) {
  return base::guarded([&]() -> Result<std::string> {
    const base::HostMap map(std::vector<int>(hosts.begin(), hosts.end()));
    const bool one_host = map.hosts() <= 1;
    std::vector<tuner::Timing> asked;
    for (const LinkTiming& t : timings) {
      asked.push_back({.question = {.collective = t.collective,
                                    .algorithm = t.algorithm,
                                    .ranks = map.ranks(),
                                    .bytes = t.bytes,
                                    .mapped = one_host && t.library_memory,
                                    .hosts = one_host ? nullptr : &map},
                       .us = t.us});
    }
    tuner::LinkProfile base = tuner::shared_memory_profile();
    if (!before.empty()) base = RONDO_TRY(tuner::parse_profile(before, "the one before"));
    if (one_host) base.llc_bytes = topology::host().llc_bytes;
    auto profile = RONDO_TRY(tuner::fit(asked, base));
    profile.name = name;
    return tuner::to_json_text(profile);
  });
}

std::string default_links_path() { return tuner::default_profile_path(); }

}  // namespace rondo
