// What a thread wants to have called while a call of it blocks: set_wait_callback().
#pragma once

#include <cstdint>

#include "comm/base/clock.hpp"

namespace rondo::base {

struct WaitCallback {
  void (*call)(void*) = nullptr;
  void* context = nullptr;
  int64_t due_ns = 0;
};

/// Each thread has its own, and calls only that.
inline thread_local constinit WaitCallback wait_callback{};

inline constexpr int64_t kWaitCallbackEveryNs = 50'000'000;

/// Calls it if there is one and it is due. Waits come here more often than it is due. Without locks,
/// because the callback may call rondo.
inline void call_back_if_due() {
  WaitCallback& callback = wait_callback;
  if (callback.call == nullptr) return;
  const int64_t now = now_ns();
  if (now < callback.due_ns) return;
  callback.due_ns = now + kWaitCallbackEveryNs;
  callback.call(callback.context);
}

}  // namespace rondo::base
