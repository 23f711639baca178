// Progress without the caller: asynchronous operations wait in a queue per communicator, and one
// thread per process moves the heads of all queues in turn, so that nothing starves while something
// else waits.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/engine/runner.hpp"

namespace rondo::engine {

/// The asynchronous operations of one communicator, in issue order, and its asynchronous
/// point-to-point messages, which move beside them. Thread rule: push() and drain()
/// by the communicator's thread, advance() by the progress thread, empty() by any.
class Queue {
 public:
  explicit Queue(Runner& runner) : runner_(runner) {}

  void push(std::unique_ptr<Operation> operation);
  void push(Transfer transfer);
  /// Acquire: once it is true the runner is the caller's again.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
  /// Waits until everything has ended, well or badly. Bounded by the operations' own deadlines.
  void drain();

  /// Wakes the progress thread if it sleeps over this queue. Any thread.
  void wake();
  /// The same, for a moment's price where it does not sleep: there is more to do.
  void ring();

  /// Moves the first operation, and the messages, a bit. `alone`: no other queue has work, so
  /// waiting may sleep.
  void advance(bool alone);

 private:
  void take_incoming();
  void end(std::unique_ptr<Operation> operation, const std::vector<Transfer>& transfers,
           const Status& status);
  void end_first(Status status);
  void fail();

  Runner& runner_;  // used only while the queue is not empty
  std::mutex mutex_;
  std::condition_variable emptied_;
  std::deque<std::unique_ptr<Operation>>
      operations_;                  // guarded by mutex_; the front is the progress thread's
  std::vector<Transfer> incoming_;  // guarded by mutex_; on their way to the lanes
  bool ending_ = false;  // guarded by mutex_: an operation has left, but its Work has not ended
  std::atomic<size_t> size_{0};  // operations and messages that have not left; changes under mutex_
  bool begun_ = false;           // progress thread only
  bool failing_ = false;         // likewise: an error, and peers may still touch buffers
  std::optional<Waiter> waiter_;  // progress thread only; there while an operation is in progress
};

/// The process's progress thread: carries out the operations of every queue that it looks after. It
/// lives as long as a communicator that has issued asynchronous operations.
class ProgressThread {
 public:
  /// This process's, started if there is none. Any thread. kResourceExhausted: no thread to be had.
  static Result<std::shared_ptr<ProgressThread>> shared();

  ProgressThread();
  /// Joins. REQUIRES: every queue is drained.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Advances `queue` (again) until it is empty. Any thread.
  void look_after(const std::shared_ptr<Queue>& queue);

 private:
  void loop();

  const pid_t owner_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Queue>> queues_;  // guarded by mutex_: those with operations
  bool quit_ = false;                           // guarded by mutex_
  std::thread thread_;                          // last: it uses the others
};

}  // namespace rondo::engine
