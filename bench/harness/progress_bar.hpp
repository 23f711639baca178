// A bar on stderr for runs that take more than a moment. Draws only if enabled, for a terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace rondo::bench {

/// Lines end in a carriage return, so that each update replaces the one before, also through
/// rondo-run. Used by one thread.
class ProgressBar {
 public:
  ProgressBar(bool watched, size_t total) : watched_(watched), total_(total) {}
  ~ProgressBar() { erase(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void draw(size_t done, const std::string& next);
  /// Call before anything else is printed.
  void erase();

 private:
  const bool watched_;
  const size_t total_;
  bool drawn_ = false;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace rondo::bench
