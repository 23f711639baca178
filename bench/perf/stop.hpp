// SIGTERM and SIGINT as an end with a report: the pending operation is aborted, so that what has
// been measured so far is still written. For programs; a library has no business with signals.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace rondo::bench {

/// To be made before the program's other threads, which inherit that these signals are blocked. A
/// second signal, or one while there is nothing to abort, ends the program at once.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  /// `abort` may be called by another thread from now on, until forget().
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
