// Counts the rounds in which ranks set a communicator up, as rondo's log says.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rondo/log.hpp"

namespace rondo::testing {

/// While it lives, takes all log messages of this process.
class Rounds {
 public:
  Rounds() {
    set_log_level(LogLevel::kInfo);
    set_log_callback([this](LogLevel, std::string_view line) {
      constexpr std::string_view kIntroduction = "set up in ";
      const size_t at = line.find(kIntroduction);
      if (at == std::string_view::npos) return;
      const int rounds = std::atoi(std::string(line.substr(at + kIntroduction.size())).c_str());
      most_ = std::max(most_.load(), rounds);  // one call at a time
    });
  }
  ~Rounds() {
    set_log_callback({});
    set_log_level(LogLevel::kWarn);
  }
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  /// Of the communicators whose rank 0 is in this process, the most.
  int most() const { return most_; }

 private:
  std::atomic<int> most_{0};
};

}  // namespace rondo::testing
