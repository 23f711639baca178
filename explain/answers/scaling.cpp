// {"question": "scaling", parameters, gradient_bytes, compute_ms, strong_from?, hidden?, bucket_bytes?, link_gb_s,
// link_us?, per_host?, host_gb_s?, host_us?, ranks: [...]}: how much of a training step's time is compute on so many
// ranks, flat (ring) and hierarchical, by rondo's cost model. Chapter 5 draws it.
//
//   communication = all-reduces x price(bytes of one)      a step = compute + max(0, communication - hidden x compute)
//   efficiency    = compute / step
//
// strong_from: that many ranks take compute_ms, more ranks take less, because the global batch is the same; absent: each
// rank always takes compute_ms. hidden: the part of compute that communication can overlap with. bucket_bytes: of one
// all-reduce; absent or 0: one all-reduce for everything. per_host: ranks of a host; absent or 0: all links are alike.
// A host's link to others is shared by its ranks. The links are all that costs: memory and folding are free.
#include <algorithm>
#include <cmath>

#include "comm/algorithms/algorithm.hpp"
#include "comm/tuner/cost.hpp"
#include "explain/answers/answers.hpp"
#include "explain/operation.hpp"

namespace rondo::explain {
namespace {

constexpr size_t kMostWorlds = 64;

struct Training {
  double parameters, gradient_bytes, compute_ms, hidden, bucket_bytes;
  int strong_from, per_host;
  tuner::LinkProfile links;

  double bytes() const { return parameters * gradient_bytes; }
  double all_reduces() const {
    return bucket_bytes > 0 ? std::max(1.0, std::ceil(bytes() / bucket_bytes)) : 1;
  }
  double compute_ms_on(int ranks) const {
    return strong_from > 0 ? compute_ms * strong_from / ranks : compute_ms;
  }
};

/// GB/s and microseconds of the links between ranks, and of the one between hosts.
tuner::LinkProfile scaling_links(double link_gb_s, double link_us, double host_gb_s,
                                 double host_us) {
  tuner::LinkProfile nothing = tuner::shared_memory_profile();
  for (const tuner::Constant& constant : tuner::kConstants) nothing.*constant.value = 0;
  tuner::LinkProfile links =
      tuner::wire_profile(link_gb_s * 1e9, link_us / 1e6, std::move(nothing));
  links.wire_alpha_us = host_us;
  links.wire_us_per_byte = host_gb_s > 0 ? 1e-3 / host_gb_s : 0;
  return links;
}

Result<Training> read_training(const PageRequest& r) {
  Training t{
      .parameters = RONDO_TRY(r.number("parameters", 1, 1e14)),
      .gradient_bytes = RONDO_TRY(r.number("gradient_bytes", 0.25, 8)),
      .compute_ms = RONDO_TRY(r.number("compute_ms", 1e-3, 1e9)),
      .hidden = RONDO_TRY(r.number("hidden", 0, 1, 1.0)),
      .bucket_bytes = RONDO_TRY(r.number("bucket_bytes", 0, 1e15, 0.0)),
      .strong_from = static_cast<int>(RONDO_TRY(r.whole("strong_from", 0, kMostPricedRanks, 0))),
      .per_host = static_cast<int>(RONDO_TRY(r.whole("per_host", 0, kMostPricedRanks, 0))),
      .links = {}};
  const double link_gb_s = RONDO_TRY(r.number("link_gb_s", 1e-6, 1e6));
  const double link_us = RONDO_TRY(r.number("link_us", 0, 1e6, 0.0));
  const double host_gb_s = RONDO_TRY(r.number("host_gb_s", 0, 1e6, 0.0));
  const double host_us = RONDO_TRY(r.number("host_us", 0, 1e6, 0.0));
  if (t.bytes() / std::max(1.0, t.bucket_bytes) > 1e9 && t.bucket_bytes > 0) {
    return r.refuse("bucket_bytes", "makes more than 1e9 all-reduces");
  }
  t.links = scaling_links(link_gb_s, link_us, host_gb_s, host_us);
  return t;
}

Json way_json(const Training& t, Algorithm algorithm, int ranks, const base::HostMap* hosts) {
  const double each = t.bytes() / t.all_reduces();
  const tuner::Price price = tuner::price({.collective = Collective::kAllReduce,
                                           .algorithm = algorithm,
                                           .ranks = ranks,
                                           .bytes = static_cast<uint64_t>(std::llround(each)),
                                           .hosts = hosts},
                                          t.links);
  const double comm_ms = t.all_reduces() * price.total_us() / 1e3;
  const double compute_ms = t.compute_ms_on(ranks);
  const double step_ms = compute_ms + std::max(0.0, comm_ms - t.hidden * compute_ms);
  return {{"comm_ms", comm_ms},
          {"latency_ms", t.all_reduces() * price.latency_us / 1e3},
          {"host_ms", t.all_reduces() * price.wire_us / 1e3},
          {"step_ms", step_ms},
          {"efficiency", compute_ms / step_ms}};
}

Json row_json(const Training& t, int ranks) {
  const schedule::SharedHosts hosts = t.per_host > 0 ? hosts_of(ranks, t.per_host) : nullptr;
  const base::HostMap one = base::HostMap::one_host(ranks);
  const algorithms::Volume volume =
      algorithms::volume_of(Collective::kAllReduce, Algorithm::kRing, hosts ? *hosts : one, 0, 0);
  Json row = {{"ranks", ranks},
              {"hosts", hosts ? hosts->hosts() : 1},
              {"sent_bytes", volume.sent.bytes(t.bytes(), static_cast<uint64_t>(ranks))},
              {"compute_ms", t.compute_ms_on(ranks)},
              {"flat", way_json(t, Algorithm::kRing, ranks, hosts.get())}};
  if (hosts) row["hierarchical"] = way_json(t, Algorithm::kHierarchical, ranks, hosts.get());
  return row;
}

/// The first of them that loses more than half of its time; null: none.
Json half_lost(const Json& rows, const char* way) {
  for (const Json& row : rows) {
    const auto at = row.find(way);
    const Json& taken = at == row.end() ? row["flat"] : *at;
    if (taken["efficiency"].get<double>() < 0.5) return row["ranks"];
  }
  return {};
}

}  // namespace

Result<Json> scaling(const PageRequest& request) {
  const Training training = RONDO_TRY(read_training(request));
  const Json* const list = RONDO_TRY(request.list("ranks", kMostWorlds));
  if (list == nullptr) return request.refuse("ranks", "is missing");
  Json rows = Json::array();
  for (const Json& ranks : *list) {
    const bool good = ranks.is_number_unsigned() && ranks.get<uint64_t>() >= 2 &&
                      ranks.get<uint64_t>() <= uint64_t{kMostPricedRanks};
    if (!good) return request.refuse("ranks", "holds something that is not 2 to 4096");
    rows.push_back(row_json(training, ranks.get<int>()));
  }
  Json answer = {{"gradient_bytes", training.bytes()},
                 {"all_reduces", training.all_reduces()},
                 {"half_lost_flat", half_lost(rows, "flat")},
                 {"half_lost_hierarchical", half_lost(rows, "hierarchical")}};
  answer["rows"] = std::move(rows);
  return answer;
}

}  // namespace rondo::explain
