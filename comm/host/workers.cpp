#include "comm/host/workers.hpp"

#include <sched.h>

#include "kernels/floating_point.hpp"

namespace rondo::engine {

Workers::Workers(const std::vector<std::unique_ptr<HostEngine>>& engines, const board::Board& board,
                 const WaitPolicy& policy)
    : engines_(engines), board_(board), policy_(policy) {
  try {
    for (size_t channel = 1; channel < engines_.size(); ++channel) {
      threads_.emplace_back([this, channel] { work(channel); });
    }
  } catch (...) {
    quit();
    throw;
  }
}

Workers::~Workers() { quit(); }

void Workers::quit() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    quit_ = true;
  }
  stop_.store(true, std::memory_order_relaxed);
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::start() {
  failed_.store(0, std::memory_order_relaxed);  // workers are idle: the mutex below publishes these
  stop_.store(false, std::memory_order_relaxed);
  running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++generation_;
  }
  wake_.notify_all();
}

void Workers::stop() {
  stop_.store(true, std::memory_order_relaxed);
  while (running() > 0) {
    board_.wake(board_.rank());
    sched_yield();
  }
}

void Workers::work(size_t channel) {
  uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return quit_ || generation_ != seen; });
      if (quit_) return;
      seen = generation_;
    }
    walk(*engines_[channel], channel);
    running_.fetch_sub(1, std::memory_order_release);  // pairs with running()
    board_.ring(board_.rank());
  }
}

void Workers::walk(HostEngine& engine, size_t channel) {
  const kernels::FloatingPointMode guard;
  Waiter waiter(policy_, board_);
  while (!stop_.load(std::memory_order_relaxed)) {
    switch (engine.advance()) {
      case Progress::kProgressed:
        board_.progressed();
        waiter.reset();
        break;
      case Progress::kBlocked:
        // Channel 0 looks after the ranks, and sets stop_ when the operation has failed.
        if (waiter.spin()) break;
        (void)waiter.idle(engine.ready_at_ns(), !engine.needs_progress());
        if (engine.arriving_ns() > base::now_ns()) board_.progressed();  // as in wait_a_little()
        break;
      case Progress::kFailed:
        failed_.store(static_cast<int>(channel), std::memory_order_release);
        return;
      case Progress::kDone:
        return;
    }
  }
}

}  // namespace rondo::engine
