// Progress without the caller: asynchronous operations wait in a queue per communicator, and one
// thread per process moves the heads of all queues in turn, so that nothing starves while something
// else waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "comm/engine/runner.hpp"

namespace rondo::engine {

/// The asynchronous operations of one communicator, in issue order. Thread rule: push() and drain()
/// by the communicator's thread, advance() by the progress thread, empty() by any.
class Queue {
 public:
  explicit Queue(Runner& runner) : runner_(runner) {}

  void push(std::unique_ptr<Operation> operation);
  /// Acquire: once it is true the runner is the caller's again.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
  /// Waits until everything has ended, well or badly. Bounded by the operations' own deadlines.
  void drain();

  /// Moves the first operation a bit. `alone`: no other queue has work, so waiting may sleep.
  void advance(bool alone);

 private:
  void end_first(const Status& status);

  Runner& runner_;  // used only while the queue is not empty
  std::mutex mutex_;
  std::condition_variable emptied_;
  std::deque<std::unique_ptr<Operation>>
      operations_;  // guarded by mutex_; the front is the progress thread's
  std::atomic<size_t> size_{0};
  bool begun_ = false;            // progress thread only
  std::optional<Waiter> waiter_;  // progress thread only; there while an operation is in progress
};

/// Makes the process's progress thread, which starts with the first call, look after this queue
/// (again).
void make_progress(const std::shared_ptr<Queue>& queue);

}  // namespace rondo::engine
