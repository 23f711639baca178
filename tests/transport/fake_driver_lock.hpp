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
    std::unique_lock lock(mutex_, std::defer_lock);
    return take(lock);
  }
  /// Of a call that waits inside until `ended`. REQUIRES: it exists.
  Status hold(const std::function<bool()>& ended) {
    std::unique_lock lock(mutex_, std::defer_lock);
    RONDO_TRY(take(lock));
    held_ = true;
    const bool has_ended = await(kPatience, ended);
    held_ = false;
    if (has_ended) return {};
    return {Code::kSystem, "a call that waits inside of CUDA keeps off what it waits for"};
  }
  bool is_held() const { return held_; }

 private:
  static constexpr std::chrono::seconds kPatience{10};

  static bool await(std::chrono::seconds patience, const std::function<bool()>& ended) {
    const auto begin = std::chrono::steady_clock::now();
    while (!ended()) {
      if (std::chrono::steady_clock::now() - begin > patience) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }
  // By attempts: TSan does not know a mutex's waits by the steady clock.
  static Status take(std::unique_lock<std::mutex>& lock) {
    if (await(3 * kPatience, [&] { return lock.try_lock(); })) return {};
    return {Code::kSystem, "another thread's call waits inside of CUDA"};
  }

  std::mutex mutex_;
  std::atomic<bool> held_{false};
};

}  // namespace rondo::transport::test
