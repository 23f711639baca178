// Ends a program with a report on SIGTERM and SIGINT: aborts the pending operation, so that the
// rows so far are written. For programs; a library does not handle signals.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace rondo::bench {

/// Create it before other threads, which inherit that these signals are blocked. A second signal,
/// or one while there is nothing to abort, ends the program at once.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  /// From now on, until forget(), another thread may call `abort`.
  void on_signal(std::function<void(const std::string& reason)> abort);
  void forget() { on_signal({}); }

 private:
  void listen();

  int signals_, end_;  // descriptors
  std::mutex mutex_;
  std::function<void(const std::string&)> abort_;  // guarded by mutex_
  std::jthread thread_;
};

}  // namespace rondo::bench
