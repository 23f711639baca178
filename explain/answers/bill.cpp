// {"question": "bill", collective, ranks, per_host, latency_us, bytes_per_second, sizes: [...]}: the predicted time of
// every algorithm at every size, in parts, and what the model multiplies. Chapter 2 draws it.
#include <algorithm>

#include "comm/algorithms/algorithm.hpp"
#include "comm/plan/plan_json.hpp"
#include "comm/tuner/choose.hpp"
#include "explain/answers/answers.hpp"
#include "explain/operation.hpp"

namespace rondo::explain {
namespace {

constexpr size_t kMostSizes = 64;

/// What the constants are multiplied by.
Json terms_json(const algorithms::Terms& t) {
  return {{"hops", t.hops},
          {"peers", t.peers},
          {"slot_bytes", t.slot_bytes},
          {"memory_bytes", t.memory_bytes},
          {"reduced_bytes", t.reduced_bytes},
          {"wire_hops", t.wire.hops},
          {"wire_messages", t.wire.messages},
          {"wire_bytes", t.wire.bytes},
          {"wire_text", t.wire.text}};
}

Json candidates_json(const plan::PlanRequest& r, uint64_t size) {
  const uint64_t bytes = argument_bytes(r.collective, r.ranks, size);
  tuner::Available available = r.available;
  available.type = r.type;
  available.hosts = r.hosts.get();
  Json list = Json::array();
  for (const tuner::Candidate& c :
       tuner::candidates(r.collective, r.ranks, bytes, available, true, r.links)) {
    Json one = plan::candidate_json(c);
    one["terms"] = terms_json(tuner::terms_of({.collective = r.collective,
                                               .algorithm = c.algorithm,
                                               .ranks = r.ranks,
                                               .bytes = bytes,
                                               .mapped = r.available.references,
                                               .hosts = r.hosts.get()},
                                              r.links));
    list.push_back(std::move(one));
  }
  return list;
}

Json links_json(const tuner::LinkProfile& links) {
  Json json = {{"name", links.name}};
  for (const tuner::Constant& constant : tuner::kConstants)
    json[constant.name] = links.*constant.value;
  json["slot_bytes"] = links.slot_bytes;
  json["slots"] = links.slots;
  json["llc_bytes"] = links.llc_bytes;
  return json;
}

/// busbw = algbw times this, as rondo-perf and nccl-tests have it.
double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  const internal::Form form = internal::form_of(collective);
  if (collective == Collective::kAllReduce) return 2 * others;
  return form.in == internal::Holds::kEach || form.out == internal::Holds::kEach ? others : 1;
}

/// What one rank sends by each algorithm, in words and in units of S, for the busiest rank.
Json volumes_json(const plan::PlanRequest& r) {
  Json list = Json::array();
  const base::HostMap one = base::HostMap::one_host(r.ranks);
  const base::HostMap& hosts = r.hosts ? *r.hosts : one;
  constexpr double kUnit = 1e6;
  for (const algorithms::AlgorithmTraits* traits : algorithms::all()) {
    const auto* const how = algorithms::find(r.collective, traits->algorithm);
    if (how == nullptr || r.ranks < 2 ||
        algorithms::refusal_on(traits->algorithm, hosts) != nullptr)
      continue;
    algorithms::Volume most;
    double sent = -1;
    for (int rank = 0; rank < std::min(r.ranks, 64); ++rank) {
      const auto volume =
          algorithms::volume_of(r.collective, traits->algorithm, hosts, rank, r.root);
      const double bytes = volume.sent.bytes(kUnit, static_cast<uint64_t>(r.ranks));
      if (bytes > sent) {
        sent = bytes;
        most = volume;
      }
    }
    list.push_back({{"algorithm", name(traits->algorithm)},
                    {"sent", sent / kUnit},
                    {"sent_formula", most.sent.text},
                    {"fetched", most.fetched.bytes(kUnit, static_cast<uint64_t>(r.ranks)) / kUnit},
                    {"fetched_formula", most.fetched.text}});
  }
  return list;
}

}  // namespace

Result<Json> bill(const PageRequest& request) {
  const plan::PlanRequest operation = RONDO_TRY(operation_of(request, kMostPricedRanks));
  const Json* const sizes = RONDO_TRY(request.list("sizes", kMostSizes));
  if (sizes == nullptr) return request.refuse("sizes", "is missing");
  Json rows = Json::array();
  for (const Json& size : *sizes) {
    const bool good = size.is_number_unsigned() && size.get<uint64_t>() <= uint64_t{1} << 40;
    if (!good) return request.refuse("sizes", "holds something that is no size of 1 TiB at most");
    const auto bytes = size.get<uint64_t>();
    rows.push_back({{"size_bytes", bytes}, {"candidates", candidates_json(operation, bytes)}});
  }
  return Json{{"collective", name(operation.collective)},
              {"ranks", operation.ranks},
              {"hosts", operation.hosts ? operation.hosts->hosts() : 1},
              {"bus_factor", bus_factor(operation.collective, operation.ranks)},
              {"links", links_json(operation.links)},
              {"volumes", volumes_json(operation)},
              {"rows", std::move(rows)}};
}

}  // namespace rondo::explain
