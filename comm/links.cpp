// The public face of the tuner's fit.
#include <vector>

#include "comm/base/guarded.hpp"
#include "comm/topology/topology.hpp"
#include "comm/tuner/default_profile.hpp"
#include "comm/tuner/fit.hpp"
#include "comm/tuner/profile_file.hpp"
#include "rondo/communicator.hpp"

namespace rondo {

Result<std::string> fit_link_profile(std::span<const LinkTiming> timings, int ranks,
                                     const std::string& name) {
  return base::guarded([&]() -> Result<std::string> {
    std::vector<tuner::Timing> asked;
    for (const LinkTiming& t : timings) {
      asked.push_back({.question = {.collective = t.collective,
                                    .algorithm = t.algorithm,
                                    .ranks = ranks,
                                    .bytes = t.bytes,
                                    .mapped = t.library_memory},
                       .us = t.us});
    }
    tuner::LinkProfile base = tuner::shared_memory_profile();
    base.llc_bytes = topology::host().llc_bytes;
    auto profile = RONDO_TRY(tuner::fit(asked, base));
    profile.name = name;
    return tuner::to_json_text(profile);
  });
}

std::string default_links_path() { return tuner::default_profile_path(); }

}  // namespace rondo
