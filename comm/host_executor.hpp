// Operations on CPUs: in the caller's thread if it waits for them and nothing is under way, otherwise
// in the progress thread.
#pragma once

#include <memory>

#include "comm/executor.hpp"
#include "comm/host/progress.hpp"
#include "comm/host/runner.hpp"

namespace rondo::comm {

class HostExecutor final : public Executor {
 public:
  HostExecutor(std::shared_ptr<engine::Runner> runner, board::Board& board,
               const PlanLimits& limits, int64_t timeout_ns)
      : Executor(limits, timeout_ns), board_(board), runner_(std::move(runner)) {}

  engine::Runner& runner() { return *runner_; }
  /// Whether the progress thread has work of this communicator.
  bool is_queued() const { return queue_ && !queue_->empty(); }
  /// Tells every rank what each says: `bytes` from `own` to block `rank` of `all`, in host memory. The
  /// kind is what other ranks see if they make another call. Outside of groups. Blocks as a call does.
  Status exchange(const void* own, void* all, size_t bytes, board::FingerprintKind kind);

  Status refusal(std::string_view call, const CallOptions& options,
                 bool asynchronous) const override;
  Status refusal(const engine::Transfer& /*message*/) const override { return {}; }
  Status run(engine::Operation& operation) override { return runner_->run(operation); }
  Status run_group(Group& group, bool* begun) override;
  void drain() override {
    if (queue_) queue_->drain();
  }
  bool is_idle() const override { return !is_queued(); }
  Status error(bool thorough) override;
  void abort() const override {}
  Status withdraw() noexcept override;
  bool reaches_buffers(bool direct) const override { return direct; }
  const char* direct_memory() const override { return "library"; }
  Status can_shrink() const override { return {}; }
  Status register_memory(void* pointer, size_t bytes) override;
  Status unregister_memory(void* pointer) override;
  uint64_t bytes_sent() const override { return runner_->bytes_sent(); }

 private:
  /// The queue and the progress thread, from now on.
  Status need_queue();
  Status queue(Group& group, bool* begun);
  Status check_own_messages(const Group& group) const;

  board::Board& board_;
  const std::shared_ptr<engine::Runner> runner_;
  // From the first asynchronous operation on:
  std::shared_ptr<engine::Queue> queue_;
  std::shared_ptr<engine::ProgressThread> progress_;
};

}  // namespace rondo::comm
