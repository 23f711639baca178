// {"question": "about"}: what the page can ask for: the collectives with their algorithms, from the table in
// comm/algorithms, so that the page has no list of its own.
#include "comm/algorithms/algorithm.hpp"
#include "explain/answers/answers.hpp"
#include "explain/operation.hpp"
#include "rondo/rondo.h"

namespace rondo::explain {

Result<Json> about(const PageRequest&) {
  Json collectives = Json::array();
  for (int c = 0; c < kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    const internal::Form form = internal::form_of(collective);
    Json some = Json::array();
    for (const algorithms::AlgorithmTraits* traits : algorithms::all()) {
      if (algorithms::find(collective, traits->algorithm) == nullptr) continue;
      some.push_back({{"name", name(traits->algorithm)},
                      {"several_hosts_only", traits->needs.hosts},
                      {"one_host_only", traits->needs.one_host()}});
    }
    collectives.push_back({{"name", name(collective)},
                           {"reduces", form.reduces},
                           {"rooted", internal::is_rooted(collective)},
                           {"varying", is_varying(collective)},
                           {"algorithms", std::move(some)}});
  }
  return Json{{"version", RONDO_VERSION},
              {"most_ranks", kMostRanks},
              {"most_priced_ranks", kMostPricedRanks},
              {"collectives", std::move(collectives)}};
}

}  // namespace rondo::explain
