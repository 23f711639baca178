// A bar on stderr for runs that take more than a moment. Draws only if enabled, for a terminal.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace rondo::bench {

/// Lines end in a carriage return, so that each update replaces the one before, also through
/// rondo-run; a narrow terminal cuts them off, since they switch its wrapping off (?7l). Used by one thread.
class ProgressBar {
 public:
  ProgressBar(bool watched, size_t total) : watched_(watched), total_(total) {}
  ~ProgressBar() { erase(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void draw(size_t done, const std::string& next) {
    constexpr size_t kWidth = 40;
    constexpr std::chrono::milliseconds kMoment{500};
    if (!watched_ || total_ == 0 || std::chrono::steady_clock::now() - start_ < kMoment) return;
    const size_t filled = kWidth * std::min(done, total_) / total_;
    std::fprintf(stderr, "\033[K\033[?7l[%s%s] %zu of %zu rows, now %s\033[?7h\r",
                 std::string(filled, '#').c_str(), std::string(kWidth - filled, '.').c_str(), done,
                 total_, next.c_str());
    std::fflush(stderr);
    drawn_ = true;
  }
  /// Call before anything else is printed.
  void erase() {
    if (!drawn_) return;
    std::fputs("\033[K\r", stderr);
    std::fflush(stderr);
    drawn_ = false;
  }

 private:
  const bool watched_;
  const size_t total_;
  bool drawn_ = false;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace rondo::bench
