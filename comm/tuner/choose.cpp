// See choose.hpp.
#include "comm/tuner/choose.hpp"

#include <algorithm>
#include <limits>

#include "comm/schedule/schedule.hpp"

namespace rondo::tuner {
namespace {

/// Whether peers' buffers, though they are not mapped, will do for a direct algorithm.
bool copies_between_processes(Collective collective, const Available& available) {
  return available.process_copy && !available.references && !form_of(collective).reduces;
}

/// Whether ranks follow a direct algorithm that is not safe in place until one of them is in place,
/// and then go through slots: only where no direct one is safe, because in place that would be
/// better.
bool is_given_up_in_place(Collective collective, Algorithm algorithm) {
  const auto is_better = [collective](Algorithm other) {
    return schedule::has(collective, other) && schedule::is_in_place_safe(collective, other);
  };
  return schedule::needs_of(algorithm).references && !is_better(Algorithm::kOneShotDirect) &&
         !is_better(Algorithm::kTwoShotDirect);
}

/// Why `algorithm`, which does the collective, may not be used; null: it may.
const char* refusal(Collective collective, Algorithm algorithm, const Available& available,
                    bool in_place) {
  const schedule::Needs needs = schedule::needs_of(algorithm);
  if (available.scaled && !can_scale(*available.scaled, algorithm))
    return "scaled inputs would be rounded differently";
  if (needs.publish && !available.publish) return "no slots with several readers";
  if (needs.references && !available.references &&
      !copies_between_processes(collective, available)) {
    return "peers' buffers are not mapped";
  }
  if (needs.signals && !available.signals) return "no counters";
  if (available.rank_order_only && form_of(collective).reduces &&
      !schedule::folds_in_rank_order(algorithm)) {
    return "does not fold in rank order";
  }
  if (in_place && !schedule::is_in_place_safe(collective, algorithm) &&
      !(available.offers && is_given_up_in_place(collective, algorithm))) {
    return "not safe in place";
  }
  return nullptr;
}

}  // namespace

bool can_scale(DataType type, Algorithm algorithm) {
  return algorithm != Algorithm::kOneShot || !is_floating(type) || size_of(type) >= 4;
}

Choice choose(Collective collective, int ranks, uint64_t bytes, const Available& available,
              bool in_place, const LinkProfile& profile) {
  for (const Candidate& candidate :
       candidates(collective, ranks, bytes, available, in_place, profile)) {
    if (candidate.refusal == nullptr) {
      return {.algorithm = candidate.algorithm, .predicted_us = candidate.price.total_us()};
    }
  }
  return {.algorithm = Algorithm::kRing, .predicted_us = std::numeric_limits<double>::infinity()};
}

std::vector<Candidate> candidates(Collective collective, int ranks, uint64_t bytes,
                                  const Available& available, bool in_place,
                                  const LinkProfile& profile) {
  std::vector<Candidate> all;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    if (!schedule::has(collective, algorithm)) continue;
    all.push_back({.algorithm = algorithm,
                   .price = price({.collective = collective,
                                   .algorithm = algorithm,
                                   .ranks = ranks,
                                   .bytes = bytes,
                                   .mapped = available.references ||
                                             (schedule::needs_of(algorithm).references &&
                                              !copies_between_processes(collective, available))},
                                  profile),
                   .refusal = refusal(collective, algorithm, available, in_place)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.price.total_us() < b.price.total_us();
  });
  return all;
}

}  // namespace rondo::tuner
