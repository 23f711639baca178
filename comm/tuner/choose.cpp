// See choose.hpp.
#include "comm/tuner/choose.hpp"

#include <algorithm>

#include "comm/algorithms/algorithm.hpp"

namespace rondo::tuner {

using algorithms::AlgorithmTraits;
using algorithms::traits_of;

namespace {

/// Whether a direct algorithm can use peers' unmapped buffers.
bool copies_between_processes(Collective collective, const Available& available) {
  return available.process_copy && !available.references && !internal::form_of(collective).reduces;
}

/// Whether ranks may choose a direct algorithm that is not safe in place, and fall back to slots if
/// a rank is in place: only if no safe direct algorithm exists, which would be better.
bool is_given_up_in_place(Collective collective, Algorithm algorithm) {
  const auto is_better = [collective](const AlgorithmTraits* other) {
    return other->needs.references && algorithms::is_in_place_safe(collective, other->algorithm);
  };
  const auto all = algorithms::all();
  return traits_of(algorithm).needs.references && std::none_of(all.begin(), all.end(), is_better);
}

/// Why `algorithm`, which implements the collective, may not be used; null: it may.
const char* refusal(Collective collective, Algorithm algorithm, const Available& available,
                    bool in_place) {
  const algorithms::Needs& needs = traits_of(algorithm).needs;
  if (needs.copies) {
    return available.copies ? "only where it is asked for"
                            : "only in memory within reach of GPUs that access each other";
  }
  if (available.hosts != nullptr) {
    const char* const why = algorithms::refusal_on(algorithm, *available.hosts);
    if (why != nullptr) return why;
  }
  if (available.scaled && !can_scale(*available.scaled, algorithm))
    return "scaled inputs would be rounded differently";
  if (needs.publish && !available.publish) return "no slots with several readers";
  if (needs.references && !available.references &&
      !copies_between_processes(collective, available)) {
    return "peers' buffers are not mapped";
  }
  if (needs.signals && !available.signals) return "no counters";
  if (available.rank_order_only && internal::form_of(collective).reduces &&
      !algorithms::folds_in_rank_order(collective, algorithm,
                                       available.type.value_or(DataType::kBFloat16))) {
    return "does not fold in rank order";
  }
  if (in_place && !algorithms::is_in_place_safe(collective, algorithm) &&
      !(available.offers && is_given_up_in_place(collective, algorithm))) {
    return "not safe in place";
  }
  return nullptr;
}

}  // namespace

bool can_scale(DataType type, Algorithm algorithm) {
  return traits_of(algorithm).scales_small_floats || !is_floating(type) || size_of(type) >= 4;
}

Algorithm choose(Collective collective, int ranks, uint64_t bytes, const Available& available,
                 bool in_place, const LinkProfile& profile) {
  for (const Candidate& candidate :
       candidates(collective, ranks, bytes, available, in_place, profile)) {
    if (candidate.refusal == nullptr) return candidate.algorithm;
  }
  return Algorithm::kAuto;
}

std::vector<Candidate> candidates(Collective collective, int ranks, uint64_t bytes,
                                  const Available& available, bool in_place,
                                  const LinkProfile& profile) {
  std::vector<Candidate> all;
  const bool one_host = available.hosts == nullptr || available.hosts->hosts() <= 1;
  for (const AlgorithmTraits* traits : algorithms::all()) {
    const Algorithm algorithm = traits->algorithm;
    if (algorithms::find(collective, algorithm) == nullptr) continue;
    if (one_host && traits->needs.hosts) continue;
    all.push_back({.algorithm = algorithm,
                   .price = price({.collective = collective,
                                   .algorithm = algorithm,
                                   .ranks = ranks,
                                   .bytes = bytes,
                                   .mapped = available.references ||
                                             (traits->needs.references &&
                                              !copies_between_processes(collective, available)),
                                   .hosts = available.hosts},
                                  profile),
                   .refusal = refusal(collective, algorithm, available, in_place)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.price.total_us() < b.price.total_us();
  });
  return all;
}

}  // namespace rondo::tuner
