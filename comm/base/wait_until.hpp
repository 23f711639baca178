// Waits for what nobody announces: the thread looks again and again. Waits for links and for what other
// ranks announce are engine::Waiter's (comm/host/wait.hpp).
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "comm/base/clock.hpp"
#include "comm/base/wait_callback.hpp"

namespace rondo::base {

struct WaitLimits {
  int64_t most_ns = INT64_MAX;  // then the wait has failed
  int64_t longest_pause_ns = 1'000'000;
};

/// Calls `done` until it returns true. First yields the CPU between two looks, then sleeps for a quarter
/// of the time that it has waited, so that it notices an end at most a quarter too late. Calls the
/// thread's wait callback. A wait that something else ends too, such as an error, has that in `done`.
/// Returns false if `limits.most_ns` have passed and `done` was still not true after that.
template <class Done>
bool wait_until(const Done& done, const WaitLimits& limits = {}) {
  constexpr int64_t kYieldNs = 100'000, kSecondNs = 1'000'000'000;
  const int64_t began = now_ns();
  for (bool last_look = false; !done(); last_look = now_ns() - began >= limits.most_ns) {
    if (last_look) return false;
    call_back_if_due();
    const int64_t waited = now_ns() - began;
    if (waited < kYieldNs) {
      sched_yield();
      continue;
    }
    const int64_t pause = std::min(
        {waited / 4, limits.longest_pause_ns, std::max<int64_t>(limits.most_ns - waited, 0)});
    const timespec time{.tv_sec = pause / kSecondNs, .tv_nsec = pause % kSecondNs};
    nanosleep(&time, nullptr);
  }
  return true;
}

}  // namespace rondo::base
