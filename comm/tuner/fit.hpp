// Fits a link profile to measured times: the constants by non-negative least squares in relative
// error, the remaining errors as corrections. Pure; rondo-perf measures.
#pragma once

#include <span>

#include "comm/tuner/cost.hpp"
#include "rondo/status.hpp"

namespace rondo::tuner {

struct Timing {
  Question question;
  double us;  // of one operation out of place
};

/// `base` with fitted constants and corrections. A constant that no timing depends on keeps its
/// value. Errors: kInvalidArgument, for fewer timings than constants, times that are not above 0 or
/// contradict each other, or different numbers of ranks.
Result<LinkProfile> fit(std::span<const Timing> timings, const LinkProfile& base);

}  // namespace rondo::tuner
