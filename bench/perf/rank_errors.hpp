// The errors of ranks that are threads of one process: each text once, and at the end the number of
// ranks that logged it where that was neither one nor all.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

namespace rondo::bench {

/// Passes on each error to `target` when its text comes for the first time, and whatever is no error.
/// A thread is a rank. Thread-safe.
class RankErrors final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  RankErrors(spdlog::sink_ptr target, int ranks)
      : target_(std::move(target)), all_(static_cast<size_t>(ranks)) {}

  /// Logs which texts came from several ranks, but not from all.
  void finish() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [text, ranks] : ranks_) {
      if (ranks.size() == 1 || ranks.size() == all_) continue;
      const std::string several = "on " + std::to_string(ranks.size()) + " ranks: " + text;
      target_->log({"rondo-perf", spdlog::level::err, several});
    }
    ranks_.clear();
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level == spdlog::level::err) {
      auto& ranks = ranks_[original({message.payload.data(), message.payload.size()})];
      ranks.insert(message.thread_id);
      if (ranks.size() > 1) return;
    }
    target_->log(message);
  }
  void flush_() override { target_->flush(); }

 private:
  /// Of "aborted: rank 1 aborted: REASON" the text that rank 1 logged before, "invalid argument: REASON":
  /// it may end another rank before that one finds out the same.
  std::string original(const std::string& text) const {
    if (!text.starts_with("aborted: rank ")) return text;
    for (const auto& [known, ranks] : ranks_) {
      const size_t code = known.find(": ");
      if (code != known.npos && text.ends_with(known.substr(code))) return known;
    }
    return text;
  }

  spdlog::sink_ptr target_;
  size_t all_;
  std::map<std::string, std::set<size_t>> ranks_;  // by text, the threads
};

}  // namespace rondo::bench
