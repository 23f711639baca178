#include "comm/host/progress.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <string>
#include <system_error>
#include <utility>

#include "comm/base/clock.hpp"
#include "comm/base/guarded.hpp"
#include "comm/base/hold_across_fork.hpp"
#include "comm/base/wait_callback.hpp"
#include "comm/host/wait.hpp"
#include "kernels/floating_point.hpp"

namespace rondo::engine {

namespace {
std::mutex progress_thread_mutex;  // of ProgressThread::shared()
}

Result<std::shared_ptr<ProgressThread>> ProgressThread::shared() {
  base::hold_across_fork<progress_thread_mutex>();
  static std::weak_ptr<ProgressThread> current;
  const std::lock_guard<std::mutex> lock(progress_thread_mutex);
  std::shared_ptr<ProgressThread> thread = current.lock();
  // A forked child inherits the object without the thread.
  if (thread && thread->owner_ == getpid()) return thread;
  try {
    current = thread = std::make_shared<ProgressThread>();
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted,
                  std::string("no thread for asynchronous operations: ") + error.what());
  }
  return thread;
}

ProgressThread::ProgressThread() : owner_(getpid()), thread_([this] { loop(); }) {}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ProgressThread::look_after(const std::shared_ptr<Queue>& queue) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::find(queues_.begin(), queues_.end(), queue) != queues_.end()) {
      queue->ring();
    } else {
      // The thread may be asleep over another queue, which is no longer alone.
      for (const auto& other : queues_) other->wake();
      queues_.push_back(queue);
    }
  }
  wake_.notify_one();
}

void ProgressThread::expect_queue() {
  const std::lock_guard<std::mutex> lock(mutex_);
  queues_.reserve(queues_.capacity() + 1);  // one more than those that there have been
}

// One queue at a turn, so that nothing has to be allocated for a round.
void ProgressThread::loop() {
  const kernels::FloatingPointMode mode;
  ask_for_short_turns();
  std::shared_ptr<Queue> queue;
  for (size_t turn = 0;; ++turn) {
    bool alone = true;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      queue.reset();  // frees that of a communicator that is gone
      std::erase_if(queues_, [](const auto& each) { return each->empty(); });
      wake_.wait(lock, [&] { return quit_ || !queues_.empty(); });
      if (quit_) return;  // every communicator is gone, and with it every operation
      queue = queues_[turn % queues_.size()];
      alone = queues_.size() == 1;
    }
    queue->advance(alone);
  }
}

void Queue::push(std::list<Operation>& operations, std::list<Transfer>& transfers) {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_.fetch_add(operations.size() + transfers.size(), std::memory_order_release);
  operations_.splice(operations_.end(), operations);
  incoming_.splice(incoming_.end(), transfers);
}

void Queue::wake() {
  // A communicator drains its queue before it goes, so the board is there while this is not empty.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!empty()) runner_.board().wake(runner_.board().rank());
}

void Queue::ring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!empty()) runner_.board().ring(runner_.board().rank());
}

void Queue::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto emptied = [&] { return empty() && !ending_; };
  if (base::wait_callback.call == nullptr) return emptied_.wait(lock, emptied);
  while (!emptied_.wait_for(lock, std::chrono::nanoseconds(base::kWaitCallbackEveryNs), emptied)) {
    lock.unlock();
    base::call_back_if_due();
    lock.lock();
  }
}

void Queue::take_incoming() {
  std::list<Transfer> incoming;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    incoming.swap(incoming_);
  }
  for (Transfer& transfer : incoming) {
    transfer.work->started_ns.store(base::now_ns(), std::memory_order_relaxed);
  }
  runner_.lanes().push(incoming);
}

// The count goes down first, so that a caller whose Work has ended finds the queue empty if it is.
// Release: pairs with empty().
void Queue::end(const std::list<Operation>& operations, const std::list<Transfer>& transfers,
                const Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    size_.fetch_sub(operations.size() + transfers.size(), std::memory_order_release);
  }
  for (const Operation& operation : operations) operation.work->end(status, base::now_ns());
  for (const Transfer& transfer : transfers) transfer.work->end(status, base::now_ns());
  const std::lock_guard<std::mutex> lock(mutex_);
  ending_ = false;
  emptied_.notify_all();
}

// By value: the status may be the runner's, which belongs to the caller once the queue is empty.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Queue::end_first(Status status) {
  begun_ = false;
  std::list<Operation> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended.splice(ended.end(), operations_, operations_.begin());
  }
  end(ended, {}, status);
}

// Ends everything with the error that all ranks report, once it is known and no peer may touch the
// buffers. Until then each turn takes one step, because this thread has other queues to move, perhaps
// those of the very peers.
void Queue::fail(bool alone) {
  constexpr timespec kPause{0, 50'000};
  if (!failing_) (void)runner_.withdraw();
  failing_ = !runner_.settle();
  if (failing_) {
    alone ? (void)nanosleep(&kPause, nullptr) : (void)sched_yield();
    return;
  }
  const Status status = runner_.board().error();
  waiter_.reset();
  begun_ = false;
  take_incoming();
  // Some may have ended well in the very step that failed. Once the last one is reported, the
  // runner is the caller's again, and may be gone: so both are taken before either is reported.
  const std::list<Transfer> ended = runner_.lanes().take_ended();
  const std::list<Transfer> pending = runner_.lanes().take_pending();
  end({}, ended, {});
  end({}, pending, status);
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (operations_.empty()) return;
    }
    end_first(status);
  }
}

void Queue::advance(bool alone) {
  if (empty()) return;
  try {
    step(alone);
  } catch (...) {
    (void)runner_.fail(base::caught());
    fail(alone);  // allocates nothing
  }
}

void Queue::step(bool alone) {
  if (failing_) return fail(alone);
  take_incoming();
  Operation* first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = operations_.empty() ? nullptr : &operations_.front();
  }
  if (!waiter_ || !begun_) {
    if (runner_.board().has_error()) return fail(alone);
  }
  if (!waiter_) waiter_.emplace(runner_.progressing_policy(), runner_.board());
  if (first != nullptr && !begun_) {
    begun_ = true;
    first->work->started_ns.store(base::now_ns(), std::memory_order_relaxed);
    runner_.moved(*waiter_);  // its deadline begins now, not when an earlier message began to wait
  }
  const Progress lanes = runner_.step_lanes();
  if (lanes == Progress::kFailed) return fail(alone);
  const Progress stepped = first != nullptr ? runner_.step(*first) : Progress::kBlocked;
  if (stepped == Progress::kFailed) return fail(alone);
  const std::list<Transfer> ended = runner_.lanes().take_ended();
  if (ended.empty() && lanes != Progress::kProgressed && stepped == Progress::kBlocked) {
    if (!runner_.wait_a_little(first, *waiter_, alone)) fail(alone);
    return;
  }
  runner_.moved(*waiter_);
  if (lanes == Progress::kDone && (first == nullptr || stepped == Progress::kDone)) waiter_.reset();
  if (!ended.empty()) end({}, ended, {});
  if (stepped == Progress::kDone) end_first(std::move(first->outcome));
}

}  // namespace rondo::engine
