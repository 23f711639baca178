// The one clock: CLOCK_MONOTONIC in nanoseconds, which is the same for all processes of a host.
#pragma once

#include <cstdint>
#include <ctime>

namespace rondo::base {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

/// A thread that looks around every few milliseconds, and then not for so long, was stopped with its
/// process (Ctrl-Z): that time counts for no limit.
inline constexpr int64_t kStoppedNs = 1'000'000'000;

}  // namespace rondo::base
