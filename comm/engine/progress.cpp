#include "comm/engine/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

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
    if (std::find(queues_.begin(), queues_.end(), queue) == queues_.end()) {
      // The thread may be asleep over another queue, which is no longer alone.
      for (const auto& other : queues_) other->wake();
      queues_.push_back(queue);
    }
  }
  wake_.notify_one();
}

void ProgressThread::loop() {
  const kernels::FloatingPointMode mode;
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
  size_.store(operations_.size(), std::memory_order_release);
}

void Queue::wake() {
  // While it is not empty, the communicator, and so the board, is there: see drain().
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!operations_.empty()) runner_.board().wake(runner_.board().rank());
}

void Queue::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  emptied_.wait(lock, [&] { return operations_.empty() && !ending_; });
}

// By value: once the queue is empty its runner belongs to others again.
void Queue::end_first(Status status) {
  waiter_.reset();
  begun_ = false;
  std::unique_ptr<Operation> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = std::move(operations_.front());
    operations_.pop_front();
    ending_ = true;
    // Release: pairs with empty(). Before the Work ends, so that who waited for it finds the queue
    // as it is.
    size_.store(operations_.size(), std::memory_order_release);
  }
  ended->work->end(std::move(status), recorder::now_ns());
  const std::lock_guard<std::mutex> lock(mutex_);
  ending_ = false;
  emptied_.notify_all();
}

void Queue::advance(bool alone) {
  if (empty()) return;
  Operation* first;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = operations_.front().get();
  }
  if (!begun_) {
    if (Status error = runner_.board().error(); !error.ok()) return end_first(error);
    begun_ = true;
    waiter_.emplace(runner_.progressing_policy(), runner_.board());
    first->work->started_ns.store(recorder::now_ns(), std::memory_order_relaxed);
    runner_.begin(*first);
  }
  switch (runner_.step(*first)) {
    case Progress::kDone:
      runner_.moved(*waiter_);
      return end_first({});
    case Progress::kFailed:
      return end_first(runner_.failure());
    case Progress::kProgressed:
      runner_.moved(*waiter_);
      return;
    case Progress::kBlocked:
      if (!runner_.wait_a_little(*first, *waiter_, alone)) end_first(runner_.failure());
      return;
  }
}

}  // namespace rondo::engine
