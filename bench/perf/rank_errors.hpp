// The errors of ranks that are threads of one process: each text once, at the end with the number of
// ranks that logged it.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <map>
#include <mutex>
#include <string>

namespace rondo::bench {

/// Passes on each text to `target` when it comes for the first time. Thread-safe.
class RankErrors final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit RankErrors(spdlog::sink_ptr target) : target_(std::move(target)) {}

  /// Logs which texts came more than once.
  void finish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [text, ranks] : times_) {
      if (ranks == 1) continue;
      const std::string all = "on " + std::to_string(ranks) + " ranks: " + text;
      target_->log({"rondo-perf", spdlog::level::err, all});
    }
    times_.clear();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (++times_[std::string(message.payload.data(), message.payload.size())] == 1) {
      target_->log(message);
    }
  }
  void flush_() override { target_->flush(); }

 private:
  spdlog::sink_ptr target_;
  std::map<std::string, int> times_;
};

}  // namespace rondo::bench
