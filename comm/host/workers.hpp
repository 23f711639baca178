// Workers: one thread for every channel beyond the first. They sleep between operations; during an
// operation each one walks its own channel with its own engine, and waits by itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/host/host_engine.hpp"
#include "comm/host/wait.hpp"

namespace rondo::engine {

/// Thread rule: start(), running() and stop() by the thread that moves the communicator's
/// operations.
class Workers {
 public:
  /// Walks channels 1 .. engines.size() - 1 of `engines`, which must outlive this. Starts the
  /// threads. Throws std::system_error when a thread cannot start.
  Workers(const std::vector<std::unique_ptr<HostEngine>>& engines, const board::Board& board,
          const WaitPolicy& policy);
  ~Workers();

  /// Makes every worker walk the operation that its engine has been started for.
  void start();
  /// How many have not ended it yet. 0 is an acquire: what the workers wrote is visible.
  int running() const { return running_.load(std::memory_order_acquire); }
  /// The channel of a worker whose engine failed, or 0.
  int failed_channel() const { return failed_.load(std::memory_order_acquire); }
  /// Makes the workers leave the operation, and waits until they have: moments.
  void stop();

 private:
  void quit();
  void work(size_t channel);
  void walk(HostEngine& engine, size_t channel);

  const std::vector<std::unique_ptr<HostEngine>>& engines_;
  const board::Board& board_;
  const WaitPolicy policy_;
  std::mutex mutex_;
  std::condition_variable wake_;
  uint64_t generation_ = 0;  // guarded by mutex_: counts operations
  bool quit_ = false;        // guarded by mutex_
  std::atomic<int> running_{0};
  std::atomic<int> failed_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace rondo::engine
