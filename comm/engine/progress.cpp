#include "comm/engine/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "comm/recorder/clock.hpp"
#include "kernels/floating_point.hpp"

namespace rondo::engine {

std::shared_ptr<ProgressThread> ProgressThread::shared() {
  static std::mutex mutex;
  static std::weak_ptr<ProgressThread> current;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<ProgressThread> thread = current.lock();
  // A forked child inherits the object without the thread.
  if (!thread || thread->owner_ != getpid()) current = thread = std::make_shared<ProgressThread>();
  return thread;
}

ProgressThread::ProgressThread() : owner_(getpid()), thread_([this] { loop(); }) {}

ProgressThread::~ProgressThread() {
  if (owner_ != getpid()) {
    thread_.detach();  // the parent's
    return;
  }
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
    if (std::find(queues_.begin(), queues_.end(), queue) == queues_.end()) queues_.push_back(queue);
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

void Queue::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  emptied_.wait(lock, [&] { return operations_.empty(); });
}

void Queue::end_first(const Status& status) {
  waiter_.reset();
  begun_ = false;
  std::unique_ptr<Operation> ended;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended = std::move(operations_.front());
    operations_.pop_front();
    // Release: pairs with empty(). Before the Work ends, so that who waited for it finds the queue
    // as it is.
    size_.store(operations_.size(), std::memory_order_release);
    emptied_.notify_all();
  }
  ended->work->end(status, recorder::now_ns());
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
      return end_first({});
    case Progress::kFailed:
      return end_first(runner_.failure());
    case Progress::kProgressed:
      waiter_->reset();
      return;
    case Progress::kBlocked:
      if (!runner_.wait_a_little(*first, *waiter_, alone)) end_first(runner_.failure());
      return;
  }
}

}  // namespace rondo::engine
