// Link profiles for Config::links: what a machine costs, fitted to times measured on it. For
// programs that measure; `rondo-perf --calibrate FILE` is one.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "rondo/status.hpp"
#include "rondo/types.hpp"

namespace rondo {

/// What one operation took, out of place: a robust figure over many.
struct LinkTiming {
  Collective collective;
  Algorithm algorithm;  // as forced; not kAuto
  size_t bytes;         // the call's count in bytes: one block, where it has blocks
  bool library_memory;  // every rank's buffers, or plain memory on all of them
  double us;
};

/// The text of a link profile for `ranks` ranks of this host, ready to be written to a file. A time
/// that was measured is predicted as it was; what lies between, and other numbers of ranks, by the
/// constants fitted to all of them. Pure apart from asking for the host's caches. kInvalidArgument
/// for too few timings, or times that are not above 0.
Result<std::string> fit_link_profile(std::span<const LinkTiming> timings, int ranks,
                                     const std::string& name);

}  // namespace rondo
