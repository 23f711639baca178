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

}  // namespace rondo::base
