// The runner: moves the operations of one communicator, one at a time, in issue order. It owns the
// project's only wait loop (run) and the step that the progress thread repeats (step).
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/engine/operation.hpp"
#include "comm/health/watch.hpp"
#include "comm/host/host_engine.hpp"
#include "comm/host/lanes.hpp"
#include "comm/host/wait.hpp"
#include "comm/host/workers.hpp"

namespace rondo::engine {

struct RunnerOptions {
  int channels = 1;
  WaitPolicy blocking{};     // for waits in the caller's thread
  WaitPolicy progressing{};  // for waits in the progress thread, beside which the caller computes
  size_t cache_bytes = 0;    // see MessageLanes
};

/// Thread rule: one thread at a time, apart from bytes_sent() and operations().
///
/// When the communicator fails, this rank withdraws at once: it moves nothing any more. What follows
/// is done in steps that never wait (settle): the failure gets its name, which may take news of another
/// host; the error is put on the board; peers stop touching this rank's buffers; the verdict comes.
class Runner {
 public:
  Runner(transport::Transport& transport, board::Board& board, board::Watch& watch,
         const RunnerOptions& options);

  /// Carries an operation out in the calling thread; blocks until it has ended, or the communicator
  /// has failed and the buffers are released.
  Status run(Operation& operation);
  /// The same for several, in this order, and for all messages that the lanes hold, all at once.
  Status run(std::list<Operation>& operations);
  MessageLanes& lanes() { return lanes_; }

  /// The same in pieces: starts the operation, if it is new, and moves it as far as it goes now.
  /// kDone: it has ended, with its `outcome`. kFailed: the communicator has, as the board says.
  Progress step(Operation& operation);
  /// The lanes' part of a step. kDone: they are empty. kFailed: as above.
  Progress step_lanes();
  /// When nothing moves, neither `operation` (null: there is none) nor the lanes: lets time pass,
  /// and looks after the ranks when that is due. `may_sleep`: nothing else needs this thread.
  /// False: the communicator has failed.
  bool wait_a_little(const Operation* operation, Waiter& waiter, bool may_sleep);
  /// After step() said kDone or kProgressed, at the end of a wait.
  void moved(Waiter& waiter);

  /// Raises the error, unless there is one, and withdraws.
  Progress fail(const Status& error);
  /// This rank moves nothing any more.
  Progress withdraw();
  /// After kFailed, or withdraw(): a step of what follows. True: the error that all ranks report is
  /// known (Board::error() does not wait), and the buffers are the caller's again. False: call again.
  /// That ends within seconds, also if a peer is stopped or another host is silent.
  bool settle();
  /// The same for a thread that waits for nothing else. Returns the error.
  Status await_settled();

  const WaitPolicy& progressing_policy() const { return options_.progressing; }
  const board::Board& board() const { return board_; }
  /// For an operation that is carried out elsewhere, on a device: its place in the order of all, on
  /// the board too, and its number.
  uint64_t record(const Prepared& prepared);
  /// The same in two calls, for one that is waited for: it has ended at the second.
  uint64_t record_begin(const Prepared& prepared);
  void record_end(uint64_t sequence);
  uint64_t bytes_sent() const;
  uint64_t operations() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  /// A failure that this rank has found and not named yet: news of another host may say more.
  struct FoundFailure {
    const Operation* operation = nullptr;  // in which `engine` failed; null if a message failed
    const HostEngine* engine = nullptr;
    Status link{};       // the link's error, or ok
    std::string what{};  // what used the link
    int peer;            // the rank it waits for, or kAnySource
    board::NewsWait news{};
  };

  void push_idle_channels(bool operates, bool has_messages);
  enum class Lookup : uint8_t { kFound, kAwaited, kNone, kMismatch };

  uint64_t begin(const Prepared& prepared);
  Progress start(Operation& operation);
  bool may_post(Operation& operation);
  void refer_to_buffers(Operation& operation);
  Progress decide(Operation& operation);
  Lookup find_buffers(Operation& operation, int peer);
  Progress refuse(Operation& operation, int peer);
  Progress walk(Operation& operation, const ExecutionPlan& plan, Sharing sharing);
  Progress finish(Operation& operation);
  bool must_withdraw(const Operation& operation) const;
  Progress find_abandoned();
  int asked(const Operation& operation) const {
    return (board_.rank() + operation.asked_peer) % board_.ranks();
  }
  int blocked_on(const Operation& operation) const;
  Progress engine_failed(const Operation& operation, const HostEngine& engine);
  Progress found(FoundFailure finding);
  bool explain(FoundFailure& finding);
  void explain_engine(const Operation& operation, const HostEngine& engine);
  bool is_released();
  Status find_uneven(const Operation& operation);

  transport::Transport& transport_;
  board::Board& board_;
  board::Watch& watch_;
  const RunnerOptions options_;
  bool needs_progress_ = false;  // the transport's links do
  PeerBuffers peers_;
  std::vector<std::unique_ptr<HostEngine>> engines_;
  MessageLanes lanes_;
  std::unique_ptr<Workers> workers_;  // channels 1.. ; null with one channel
  std::atomic<uint64_t> sequence_{0};
  uint64_t history_ = 0;                // hash of every call so far
  uint64_t begun_by_all_ = 0;           // an operation that every peer was seen to have begun
  const Operation* current_ = nullptr;  // begun and not ended: peers may touch its buffers
  std::optional<FoundFailure> finding_;
  int64_t release_began_ns_ = 0;
  int64_t left_ns_ = 0;  // when a message was first seen to wait for a rank that has left; 0: none
};

}  // namespace rondo::engine
