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

/// `base` with constants and corrections fitted to timings, all on one host, or all between hosts, of
/// one map or several. On one host the constants of a host are fitted; between hosts those of the wire,
/// because one hop cannot tell the two apart. The other ones are kept, and so are those that no timing
/// depends on. Corrections of other maps or collectives are scaled so that they predict the same as before.
/// Errors: kInvalidArgument, for fewer timings than constants, times that are not above 0 or contradict
/// each other, and timings on one host among those between hosts, or of another number of ranks.
Result<LinkProfile> fit(std::span<const Timing> timings, const LinkProfile& base);

}  // namespace rondo::tuner
