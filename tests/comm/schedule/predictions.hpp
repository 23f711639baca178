// Questions to link profiles, fits of profiles, and what these predict.
#pragma once

#include <span>

#include "comm/tuner/fit.hpp"
#include "tests/comm/schedule/operations.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::tuner::test {

/// Out of place, on the memory that the algorithm needs. `hosts`: null: one; they outlive the question.
inline Question question_of(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
                            const schedule::SharedHosts& hosts = nullptr) {
  return {.collective = collective,
          .algorithm = algorithm,
          .ranks = ranks,
          .bytes = bytes,
          .mapped = algorithms::traits_of(algorithm).needs.references,
          .hosts = hosts.get()};
}

inline LinkProfile fitted(std::span<const Timing> timings, const LinkProfile& base) {
  Result<LinkProfile> profile = fit(timings, base);
  if (!profile.ok()) FAIL(profile.status().to_string());
  return std::move(*profile);
}

inline void check_predictions(std::span<const Timing> timings, const LinkProfile& profile,
                              double epsilon) {
  for (const Timing& t : timings) {
    CHECK(price(t.question, profile).total_us() == Approx(t.us).epsilon(epsilon));
  }
}

/// On a machine that the model explains, the constants do nearly all of it.
inline void check_factors(const LinkProfile& profile, double epsilon) {
  for (const Corrections& corrections : profile.corrections) {
    for (const Correction& table : corrections.tables) {
      for (const Correction::Point& point : table.points) {
        CHECK(point.factor == Approx(1).epsilon(epsilon));
      }
    }
  }
}

}  // namespace rondo::tuner::test
