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

/// `base` with constants and corrections fitted to timings on one host. A constant that no timing
/// depends on keeps its value. Errors: kInvalidArgument, for fewer timings than constants, times that
/// are not above 0 or contradict each other, different numbers of ranks, or several hosts.
Result<LinkProfile> fit(std::span<const Timing> timings, const LinkProfile& base);

/// `base` with the wire's constants fitted to timings between hosts, which may be several maps; those
/// of a host are kept, because one hop between hosts cannot tell them from the wire's. Corrections
/// stay as they are: they hold on one host. Errors: kInvalidArgument, as in fit(), or all ranks of a
/// timing on one host.
Result<LinkProfile> fit_wire(std::span<const Timing> timings, const LinkProfile& base);

}  // namespace rondo::tuner
