// Ends a program with a report on SIGTERM and SIGINT: aborts the pending operation, so that the
// rows so far are written. For programs; a library does not handle signals.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace rondo::bench {

/// Create it before other threads, which inherit that these signals are blocked. A second signal
/// (SIGTERM: after a second), or one while there is nothing to abort, ends the program at once.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  /// From now on, until forget(), another thread may call `abort`.
  void on_signal(std::function<void(const std::string& reason)> abort);
  void forget() { on_signal({}); }

  /// A program's exit code: a failure is 128 and the signal's number if that has stopped it.
  int exit_code(int code) const { return code != 0 && stopped_by_ != 0 ? 128 + stopped_by_ : code; }

 private:
  void listen();

  int signals_, end_;               // descriptors
  std::atomic<int> stopped_by_{0};  // a signal
  std::mutex mutex_;
  std::function<void(const std::string&)> abort_;  // guarded by mutex_
  std::jthread thread_;
};

}  // namespace rondo::bench
