#include "comm/engine/progress.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "comm/engine/wait.hpp"
#include "comm/recorder/clock.hpp"
#include "kernels/floating_point.hpp"

namespace rondo::engine {

Result<std::shared_ptr<ProgressThread>> ProgressThread::shared() {
  static std::mutex mutex;
  static std::weak_ptr<ProgressThread> current;
  const std::lock_guard<std::mutex> lock(mutex);
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

void ProgressThread::loop() {
  const kernels::FloatingPointMode mode;
  ask_for_short_turns();
  std::vector<std::shared_ptr<Queue>> busy;
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      busy.clear();  // frees queues of communicators that are gone
      std::erase_if(queues_, [](const auto& queue) { return queue->empty(); });
      wake_.wait(lock, [&] { return quit_ || !queues_.empty(); });
      if (quit_) return;  // every communicator is gone, and with it every operation
      busy = queues_;
    }
    for (const auto& queue : busy) queue->advance(busy.size() == 1);
  }
}

void Queue::push(std::unique_ptr<Operation> operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  operations_.push_back(std::move(operation));
  size_.fetch_add(1, std::memory_order_release);
}

void Queue::push(Transfer transfer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  incoming_.push_back(std::move(transfer));
  size_.fetch_add(1, std::memory_order_release);
}

void Queue::wake() {
  // While it is not empty, the communicator, and so the board, is there: see drain().
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!empty()) runner_.board().wake(runner_.board().rank());
}

void Queue::ring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!empty()) runner_.board().ring(runner_.board().rank());
}

void Queue::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  emptied_.wait(lock, [&] { return empty() && !ending_; });
}

void Queue::take_incoming() {
  std::vector<Transfer> incoming;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    incoming.swap(incoming_);
  }
  for (Transfer& transfer : incoming) {
    transfer.work->started_ns.store(recorder::now_ns(), std::memory_order_relaxed);
    runner_.lanes().push(std::move(transfer));
  }
}

// The count first: who waited for a Work finds the queue as it is. Release: pairs with empty().
void Queue::end(std::unique_ptr<Operation> operation, const std::vector<Transfer>& transfers,
                const Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    size_.fetch_sub(transfers.size() + (operation ? 1 : 0), std::memory_order_release);
  }
  if (operation) operation->work->end(status, recorder::now_ns());
  for (const Transfer& transfer : transfers) transfer.work->end(status, recorder::now_ns());
  const std::lock_guard<std::mutex> lock(mutex_);
  ending_ = false;
  emptied_.notify_all();
}

// By value: once the queue is empty its runner belongs to others again.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void Queue::end_first(Status status) {
  begun_ = false;
  std::unique_ptr<Operation> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = std::move(operations_.front());
    operations_.pop_front();
  }
  end(std::move(ended), {}, status);
}

// Everything ends with the error that is on the board, once peers have let go of buffers. They may
// be this thread's other queues, so this never waits.
void Queue::fail() {
  const Status status = runner_.board().error();
  if (!failing_) runner_.give_up(status);
  failing_ = !runner_.is_let_go();
  if (failing_) {
    sched_yield();
    return;
  }
  waiter_.reset();
  begun_ = false;
  take_incoming();
  // Some may have ended well in the very step that failed.
  end(nullptr, runner_.lanes().take_ended(), {});
  end(nullptr, runner_.lanes().take_pending(), status);
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
  if (failing_) return fail();
  take_incoming();
  Operation* first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = operations_.empty() ? nullptr : operations_.front().get();
  }
  if (!waiter_ || !begun_) {
    if (runner_.board().has_error()) return fail();
  }
  if (!waiter_) waiter_.emplace(runner_.progressing_policy(), runner_.board());
  if (first != nullptr && !begun_) {
    begun_ = true;
    first->work->started_ns.store(recorder::now_ns(), std::memory_order_relaxed);
    runner_.begin(*first);
    runner_.moved(*waiter_);  // its deadline begins now, not with that of a message before it
  }
  const Progress lanes = runner_.step_lanes();
  if (lanes == Progress::kFailed) return fail();
  const Progress stepped = first != nullptr ? runner_.step(*first) : Progress::kBlocked;
  if (stepped == Progress::kFailed) {
    // Not every failure is the communicator's (Runner::decide).
    Status failure = runner_.failure();
    if (runner_.board().has_error()) return fail();
    runner_.moved(*waiter_);
    return end_first(std::move(failure));
  }
  std::vector<Transfer> ended = runner_.lanes().take_ended();
  if (ended.empty() && lanes != Progress::kProgressed && stepped == Progress::kBlocked) {
    if (!runner_.wait_a_little(first, *waiter_, alone)) fail();
    return;
  }
  runner_.moved(*waiter_);
  if (lanes == Progress::kDone && (first == nullptr || stepped == Progress::kDone)) waiter_.reset();
  if (!ended.empty()) end(nullptr, ended, {});
  if (stepped == Progress::kDone) end_first({});
}

}  // namespace rondo::engine
