// The host engine: the interpreter's primitives on CPU memory, for one channel of one communicator.
// It never waits; it tells whom it is blocked on.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/engine/interpreter.hpp"
#include "comm/engine/operation.hpp"
#include "comm/recorder/board.hpp"
#include "transport/link.hpp"

namespace rondo::engine {

/// Moves before the caller looks round: long enough not to matter, short enough that nothing else
/// starves, and that others see within moments that this rank works, or has noticed an error. Moves
/// on peers' buffers are larger than slots, and slots may be as large as their owner likes.
constexpr uint32_t moves_in_turn(bool direct, size_t slice_bytes) {
  constexpr size_t kMoves = 16, kBytes = size_t{4} << 20;
  if (direct) return 1;
  if (slice_bytes <= kBytes / kMoves) return kMoves;
  return static_cast<uint32_t>(std::max<size_t>(kBytes / slice_bytes, 1));
}

/// Where peers' buffers lie, for direct operations; one for all channels.
struct PeerBuffers {
  std::vector<std::byte*> in, out;
  /// Whether that is an address in the peer's process, from and to which only the kernel can copy.
  std::vector<bool> in_elsewhere, out_elsewhere;
  bool any_elsewhere = false;
  std::vector<double> factors;  // of a scaled sum's inputs
};

/// Thread rule: one thread at a time.
class HostEngine {
 public:
  HostEngine(transport::Transport& transport, const recorder::Board& board,
             const PeerBuffers& peers, int channel);

  /// Prepares for an operation whose plan has been chosen. It must outlive the calls that follow.
  void start(const Operation& operation);

  /// Walks on, for a moment: see advance() in interpreter.hpp.
  Progress advance();
  /// Whether no peer may still read In by reference.
  bool drained() { return referred_.empty() || let_go_of_references(); }

  // The interpreter's primitives.
  Progress try_move(const SliceMove& move);
  Progress try_wait(const schedule::Instruction& instruction);
  void signal();

  /// After kBlocked: the peer that has to act (any thread may ask), and when its slot is known to
  /// become visible (0: unknown). -1: not blocked.
  int blocked_on() const { return blocked_on_.load(std::memory_order_relaxed); }
  int64_t ready_at_ns() const { return awaited_ != nullptr ? awaited_->ready_at_ns() : 0; }
  /// After kBlocked: whether walking on is worth while. Cheaper than advance(), for tight polling.
  bool may_go_on() const {
    transport::Delivery ignored;
    return awaited_ == nullptr || awaited_->try_peek(&ignored);
  }
  const Cursor& cursor() const { return cursor_; }
  /// After kFailed: blocked_on() is the peer whose slot belongs to another operation (mismatch), or
  /// makes no sense, or whose memory the kernel could not copy (errno; 0: it is not that).
  bool mismatch() const { return mismatch_; }
  int copy_error() const { return copy_error_; }
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  bool let_go_of_references();
  /// Peeks an operand of the current move.
  Progress receive(transport::Receiver& receiver, int peer, size_t bytes, std::byte** where);
  /// Finds where the operands lie: what has arrived, what may be written.
  Progress locate(const SliceMove& move, size_t bytes);
  Progress publish(const SliceMove& move, size_t bytes);
  bool can_refer(const SliceMove& move, size_t bytes) const;
  Progress send_reference(const SliceMove& move, size_t bytes);
  void compute(const SliceMove& move);
  /// The factors of a scaled move's sources, and whether there are any.
  bool find_factors(const SliceMove& move);
  /// A copy of which an operand is in another process.
  Progress copy_between_processes(const SliceMove& move, size_t bytes);
  void release(const SliceMove& move);
  /// What is signalled: how many signals there have been, and under them some bits of the
  /// operation's tag, so that a wait notices a signal of another operation. 2^44 signals last for
  /// weeks of back-to-back barriers.
  uint64_t signal_value() const {
    return signals_ << kSignalTagBits | (operation_->tag & ((uint64_t{1} << kSignalTagBits) - 1));
  }
  Progress blocked(int peer, transport::Receiver* awaited = nullptr) {
    // Relaxed: told to other threads for diagnosis only.
    blocked_on_.store(peer, std::memory_order_relaxed);
    awaited_ = awaited;
    return Progress::kBlocked;
  }
  Progress failed(int peer, bool mismatch) {
    blocked_on_.store(peer, std::memory_order_relaxed);
    mismatch_ = mismatch;
    return Progress::kFailed;
  }
  void sent(uint64_t bytes) {
    // Relaxed: a statistic with one writer.
    bytes_sent_.store(bytes_sent_.load(std::memory_order_relaxed) + bytes,
                      std::memory_order_relaxed);
  }

  static constexpr int kSignalTagBits = 20;

  transport::Transport& transport_;
  const recorder::Board& board_;
  const PeerBuffers& peers_;
  const int channel_;
  const int rank_;
  // By peer; null at this rank's own place. The publisher and subscriptions are null where the
  // transport has none.
  std::vector<transport::Sender*> senders_;
  std::vector<transport::Receiver*> receivers_;
  std::vector<transport::Receiver*> subscriptions_;
  transport::Sender* publisher_ = nullptr;

  const Operation* operation_ = nullptr;
  const schedule::Geometry* geometry_ = nullptr;
  ProgramView program_{};
  Cursor cursor_;
  std::byte *in_ = nullptr, *out_ = nullptr;  // in_ is only ever read
  uint32_t budget_ = 1;                       // moves in turn
  bool may_refer_ = false;                    // In may be sent by reference
  std::vector<double> factors_;               // of the sources of the current move
  std::vector<std::byte*> located_;  // operands of the current move: sources, then destinations
  // What the current move does besides computing, so that most of it is not looked for in vain.
  bool takes_ = false;       // reads slots, to be released
  bool hands_over_ = false;  // writes slots or peers' buffers
  uint64_t fetched_ = 0;     // bytes read from peers' buffers
  uint32_t published_ = 0;   // destinations of the current move already handed over
  bool computed_ = false;    // the current move's kernel has run
  uint64_t signals_ = 0;     // raised since creation
  struct Referred {
    transport::Sender* sender;
    int peer;
  };
  std::vector<Referred> referred_;  // links that carry references of this operation
  std::atomic<int> blocked_on_{-1};
  transport::Receiver* awaited_ = nullptr;
  bool mismatch_ = false;
  int copy_error_ = 0;
  std::atomic<uint64_t> bytes_sent_{0};
};

}  // namespace rondo::engine
