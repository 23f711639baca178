// What CUDA may do in a call that waits for a stream or for the whole GPU: hold a lock of the context
// meanwhile, so that every other call of the process waits, too.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "rondo/status.hpp"

namespace rondo::transport::test {

class FakeDriverLock {
 public:
  std::atomic<bool> exists{false};

  /// Of every call.
  Status pass() {
    if (!exists) return {};
    const std::unique_lock lock(mutex_, 3 * kPatience);
    if (lock.owns_lock()) return {};
    return {Code::kSystem, "another thread's call waits inside of CUDA"};
  }
  /// Of a call that waits inside until `ended`. REQUIRES: it exists.
  Status hold(const std::function<bool()>& ended) {
    const std::unique_lock lock(mutex_, 3 * kPatience);
    held_ = true;
    const auto begin = std::chrono::steady_clock::now();
    while (lock.owns_lock() && !ended()) {
      if (std::chrono::steady_clock::now() - begin > kPatience) {
        held_ = false;
        return {Code::kSystem, "a call that waits inside of CUDA keeps off what it waits for"};
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    held_ = false;
    return lock.owns_lock() ? Status() : pass();
  }
  bool is_held() const { return held_; }

 private:
  static constexpr std::chrono::seconds kPatience{10};
  std::atomic<bool> held_{false};
  std::timed_mutex mutex_;
};

}  // namespace rondo::transport::test
