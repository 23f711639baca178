// Progress without the caller: asynchronous operations wait in a queue per communicator, and one
// thread per process moves the heads of all queues in turn, so that no queue starves while another
// one waits.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/host/runner.hpp"

namespace rondo::engine {

/// The asynchronous operations of one communicator, in issue order, and its asynchronous
/// point-to-point messages, which move beside them. Thread rule: push() and drain()
/// by the communicator's thread, advance() by the progress thread, empty() by any.
class Queue {
 public:
  explicit Queue(Runner& runner) : runner_(runner) {}

  /// Takes them all. Allocates nothing.
  void push(std::list<Operation>& operations, std::list<Transfer>& transfers);
  /// Acquire: once it is true the caller's thread may use the runner again.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
  /// Waits until everything has ended, well or badly. Bounded by the operations' own deadlines.
  void drain();

  /// Wakes the progress thread if it sleeps over this queue. Any thread.
  void wake();
  /// The same, and cheap where the thread does not sleep: for new work in a queue that has some.
  void ring();

  /// One step of the first operation, and of the messages. `alone`: no other queue has work, so
  /// this one may sleep. Throws nothing: the communicator fails instead.
  void advance(bool alone);

 private:
  void step(bool alone);
  void take_incoming();
  void end(const std::list<Operation>& operations, const std::list<Transfer>& transfers,
           const Status& status);
  void end_first(Status status);
  void fail(bool alone);

  Runner& runner_;  // used only while the queue is not empty
  std::mutex mutex_;
  std::condition_variable emptied_;
  std::list<Operation> operations_;  // guarded by mutex_; the front is the progress thread's
  std::list<Transfer> incoming_;     // guarded by mutex_; on their way to the lanes
  bool ending_ = false;  // guarded by mutex_: an operation has left, but its Work has not ended
  std::atomic<size_t> size_{0};  // operations and messages that have not left; changes under mutex_
  bool begun_ = false;           // progress thread only
  bool failing_ = false;         // progress thread only: after a failure, until it is settled
  std::optional<Waiter> waiter_;  // progress thread only; there while an operation is in progress
};

/// The process's progress thread: carries out the operations of every queue handed to look_after().
/// It lives as long as any communicator that has issued an asynchronous operation.
class ProgressThread {
 public:
  /// This process's, started if there is none. Any thread. kResourceExhausted: no thread can start.
  static Result<std::shared_ptr<ProgressThread>> shared();

  ProgressThread();
  /// Joins. REQUIRES: every queue is drained.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Before a queue is first looked after: makes room for it. Any thread.
  void expect_queue();
  /// Advances `queue` (again) until it is empty. Any thread. Allocates nothing.
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
