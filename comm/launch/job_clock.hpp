// The clock of a job's deadlines. It stands still while rondo-run is stopped together with its ranks
// (Ctrl-Z), so that no time limit, grace period or silence of a host ends during that time.
#pragma once

#include <chrono>

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

}  // namespace rondo::run
