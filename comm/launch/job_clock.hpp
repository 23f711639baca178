// The clock of a job's deadlines. It stands still while rondo-run is stopped together with its ranks
// (Ctrl-Z), so that no time limit, grace period or silence of a host ends during that time.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace rondo::run {

/// One thread. Its times are compared with each other only.
class JobClock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using time_point = std::chrono::steady_clock::time_point;
  static time_point now() { return std::chrono::steady_clock::now() - stopped_; }
  /// This process has just been stopped for so long.
  static void leave_out(duration stopped) { stopped_ += stopped; }

 private:
  inline static duration stopped_{};
};

/// The first of these times; in a minute, if that is earlier.
inline JobClock::time_point earliest(
    std::initializer_list<std::optional<JobClock::time_point>> times) {
  auto first = JobClock::now() + std::chrono::minutes(1);
  for (const auto& time : times) first = std::min(first, time.value_or(first));
  return first;
}

/// As poll(), until that time at most.
inline int poll_until(std::span<pollfd> watched, JobClock::time_point until) {
  constexpr int64_t kMostMs = 3'600'000;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - JobClock::now());
  return poll(watched.data(), watched.size(),
              static_cast<int>(std::clamp<int64_t>(left.count(), 0, kMostMs)));
}

/// Between two instances of rondo-run: when this one sends a sign of life, and when the other one, which
/// has been silent, is lost.
class SignsOfLife {
 public:
  using Time = JobClock::time_point;
  explicit SignsOfLife(double lost_after_s)
      : lost_after_(std::chrono::ceil<std::chrono::milliseconds>(
            std::chrono::duration<double>(std::min(lost_after_s, 1e9)))) {}
  /// Something has come from the other one.
  void heard(Time now) { heard_ = now; }
  Time lost_at() const { return heard_ + lost_after_; }
  Time next_sign() const { return next_sign_; }
  /// Whether one is to be sent now.
  bool takes_sign(Time now) {
    if (now < next_sign_) return false;
    next_sign_ = now + lost_after_ / 6;
    return true;
  }

 private:
  std::chrono::milliseconds lost_after_;
  Time heard_ = JobClock::now(), next_sign_ = heard_ + lost_after_ / 6;
};

}  // namespace rondo::run
