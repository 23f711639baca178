// The runner: moves the operations of one communicator, one at a time, in issue order. It owns the
// project's only wait loop (run) and the step that the progress thread repeats (step).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/engine/host_engine.hpp"
#include "comm/engine/lanes.hpp"
#include "comm/engine/operation.hpp"
#include "comm/engine/wait.hpp"
#include "comm/engine/workers.hpp"
#include "comm/recorder/watch.hpp"

namespace rondo::engine {

struct RunnerOptions {
  int channels = 1;
  WaitPolicy blocking{};     // for waits in the caller's thread
  WaitPolicy progressing{};  // for waits in the progress thread, beside which the caller computes
  size_t cache_bytes = 0;    // see Lanes
};

/// Thread rule: one thread at a time, apart from bytes_sent() and operations().
class Runner {
 public:
  Runner(transport::Transport& transport, recorder::Board& board, recorder::Watch& watch,
         const RunnerOptions& options);

  /// Carries an operation out in the calling thread; blocks until it has ended or failed.
  Status run(Operation& operation);
  /// The same for several, in this order, and for all messages that the lanes hold, all at once.
  Status run(std::span<const std::unique_ptr<Operation>> operations);
  Lanes& lanes() { return lanes_; }

  /// The same in pieces: begin() once, then step() until it says kDone or kFailed (then failure()
  /// says why).
  void begin(Operation& operation);
  Progress step(Operation& operation);
  const Status& failure() const { return failure_; }
  /// The lanes' part of a step. kDone: they are empty. kFailed: failure() says why.
  Progress step_lanes();
  /// Nothing of this communicator is moved any more, after an error that is on the board.
  void give_up(Status status) { (void)fail(std::move(status)); }
  /// After a failure: whether buffers are the caller's again. False while peers may still touch
  /// them, which ends within moments, or with a peer that is stopped after a deadline.
  bool is_let_go();
  /// When nothing moves, neither `operation` (null: there is none) nor the lanes: lets time pass,
  /// and looks after the ranks when that is due. `may_sleep`: nothing else needs this thread.
  /// False: failed.
  bool wait_a_little(const Operation* operation, Waiter& waiter, bool may_sleep);

  /// After step() said kDone or kProgressed, at the end of a wait.
  void moved(Waiter& waiter);

  const WaitPolicy& progressing_policy() const { return options_.progressing; }
  const recorder::Board& board() const { return board_; }
  /// For an operation that is carried out elsewhere, on a device: its place in the order of all, on
  /// the board too, and its number.
  uint64_t post(const Prepared& prepared);
  uint64_t bytes_sent() const;
  uint64_t operations() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  Progress let_follow(Operation& operation);
  void post(Operation& operation);
  void show(Operation& operation);
  Progress decide(Operation& operation);
  Progress choose(Operation& operation, const Plan* plan);
  Progress fail(Status status);
  Status await_peers();
  Status find_abandoned(bool* moved);
  int blocked_on() const;
  Progress engine_failed(const Operation& operation, const HostEngine& engine);
  bool gave_up(const Operation& operation) const;
  Status find_uneven(const Operation& operation);
  Progress finish(Operation& operation);

  transport::Transport& transport_;
  recorder::Board& board_;
  recorder::Watch& watch_;
  const RunnerOptions options_;
  const bool references_;  // the transport's
  PeerBuffers peers_;
  std::vector<std::unique_ptr<HostEngine>> engines_;
  Lanes lanes_;
  std::unique_ptr<Workers> workers_;  // channels 1.. ; null with one channel
  std::atomic<uint64_t> sequence_{0};
  uint64_t history_ = 0;                // hash of every call so far
  const Operation* current_ = nullptr;  // begun and not finished
  uint64_t begun_by_all_ = 0;           // an operation that every peer was seen to have begun
  int deciding_on_ = -1;                // >= 0: blocked because this peer has not posted yet
  Status failure_;
  int64_t failed_ns_ = 0;
};

}  // namespace rondo::engine
