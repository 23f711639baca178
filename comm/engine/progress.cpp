#include "comm/engine/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "comm/recorder/clock.hpp"
#include "kernels/floating_point.hpp"

namespace rondo::engine {

namespace {

class ProgressThread {
 public:
  void add(const std::shared_ptr<Queue>& queue) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (std::find(queues_.begin(), queues_.end(), queue) == queues_.end())
        queues_.push_back(queue);
      if (!started_) {
        std::thread([this] { loop(); }).detach();
        started_ = true;
      }
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    const kernels::FloatingPointMode mode;
    std::vector<std::shared_ptr<Queue>> busy;
    while (true) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        busy.clear();  // frees queues of communicators that are gone
        std::erase_if(queues_, [](const auto& queue) { return queue->empty(); });
        wake_.wait(lock, [&] { return !queues_.empty(); });
        busy = queues_;
      }
      for (const auto& queue : busy) queue->advance(busy.size() == 1);
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Queue>> queues_;  // guarded by mutex_: those with operations
  bool started_ = false;                        // guarded by mutex_
};

// Never destroyed: the thread may outlive main(). A forked child has no such thread, so it makes
// its own.
ProgressThread& progress_thread() {
  static std::mutex mutex;
  static ProgressThread* thread = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != getpid()) {
    thread = new ProgressThread;
    owner = getpid();
  }
  return *thread;
}

}  // namespace

void make_progress(const std::shared_ptr<Queue>& queue) { progress_thread().add(queue); }

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
