// The host engine: the interpreter's primitives on CPU memory, for one channel of one communicator.
// It never waits; blocked_on() names the peer that has to act.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/board/board.hpp"
#include "comm/board/tags.hpp"
#include "comm/engine/interpreter.hpp"
#include "comm/engine/operation.hpp"
#include "comm/host/slot_stores.hpp"
#include "transport/link.hpp"

namespace rondo::engine {

/// How many moves advance() makes before it returns. Enough that returning costs little; few enough
/// that nothing else starves, and that peers soon see this rank's progress, and this rank an error.
/// Moves on peers' buffers are larger than slots, and slots have any size that the user configures.
constexpr uint32_t moves_in_turn(bool direct, size_t slice_bytes) {
  constexpr size_t kMoves = 16, kBytes = size_t{4} << 20;
  if (direct) return 1;
  if (slice_bytes <= kBytes / kMoves) return kMoves;
  return static_cast<uint32_t>(std::max<size_t>(kBytes / slice_bytes, 1));
}

/// Where peers' buffers lie, for direct operations; one for all channels.
struct PeerBuffers {
  std::vector<std::byte*> in, out;
  /// Whether the buffer is not mapped here: an address in the peer's process, which only the kernel
  /// copies from and to.
  std::vector<bool> in_elsewhere, out_elsewhere;
  std::vector<double> factors;  // of a scaled sum's inputs
};

/// Thread rule: one thread at a time.
class HostEngine {
 public:
  HostEngine(transport::Transport& transport, const board::Board& board, const PeerBuffers& peers,
             int channel);

  /// Prepares for an operation whose plan has been chosen. It must outlive the calls that follow.
  void start(const Operation& operation);

  /// Makes a few moves: see advance() in interpreter.hpp. After kDone, no peer reads In by
  /// reference any more, and all that was sent or released arrives without another call.
  Progress advance();
  /// Whether the channel's links move only inside advance() (Capabilities::needs_progress).
  bool needs_progress() const { return needs_progress_; }

  // The interpreter's primitives.
  Progress try_move(const SliceMove& move);
  Progress try_wait(const schedule::Instruction& instruction);
  void signal();

  /// After kBlocked: the peer that has to act; -1: not blocked. Any thread.
  int blocked_on() const { return blocked_on_.load(std::memory_order_relaxed); }
  /// After kBlocked: when the awaited slot, signal or bytes arrive (CLOCK_MONOTONIC), or 0 if that is
  /// unknown.
  int64_t ready_at_ns() const {
    return awaited_ != nullptr ? awaited_->ready_at_ns() : ready_at_ns_;
  }
  /// After kBlocked: when the awaited signal or bytes arrive that are already on a paced wire, or 0.
  /// A rank that waits for them has not stalled.
  int64_t arriving_ns() const { return ready_at_ns_; }
  /// After kBlocked: whether advance() may get further now. Cheaper than advance(), for spinning.
  bool may_go_on() const {
    transport::Delivery ignored;
    return needs_progress_ || awaited_ == nullptr || awaited_->try_peek(&ignored);
  }
  const Cursor& cursor() const { return cursor_; }
  /// After kFailed: blocked_on() is the peer whose slot belongs to another operation (mismatch), or
  /// makes no sense, or whose memory the kernel could not copy (copy_error(): errno, else 0).
  bool mismatch() const { return mismatch_; }
  int copy_error() const { return copy_error_; }
  /// After kFailed: the error of a link; ok: the failure is one of the above.
  const Status& link_error() const { return link_error_; }
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  /// Calls the transport's progress(). False: a link has failed (link_error()).
  bool push();
  /// kDone: nothing that this channel sent or released needs push() any more.
  Progress flush();
  /// kDone: no peer reads In by reference any more.
  Progress drain_references();
  /// Peeks an operand of the current move.
  Progress receive(transport::Receiver& receiver, int peer, size_t bytes, std::byte** where);
  /// Acquires a slot for an operand of the current move.
  Progress acquire(transport::Sender& sender, int reader, size_t bytes, std::byte** where);
  /// Finds where the operands of a move lie: buffers, slots that have arrived, free slots.
  Progress locate(const SliceMove& move, size_t bytes);
  Progress publish(const SliceMove& move, size_t bytes);
  bool can_refer(const SliceMove& move, size_t bytes) const;
  Progress send_reference(const SliceMove& move, size_t bytes);
  /// Fills the Out of a move with the operator's identity, and says where that is.
  std::byte* fill_out(const SliceMove& move, size_t bytes) const;
  void compute(const SliceMove& move);
  /// Runs the kernel of `move`, whose slots are stored through the caches or around them.
  void compute_large(const SliceMove& move, kernels::Move& kernel_move);
  /// Place in refers_ of the rank, or the ranks, that read a slot.
  size_t reader_of(const schedule::Location& slot) const {
    return static_cast<size_t>(slot.place == schedule::OperandKind::kPublished ? rank_ : slot.peer);
  }
  /// Puts the factors of a scaled move's sources into factors_; false: all are 1.
  bool find_factors(const SliceMove& move);
  /// Over a pace: charges the bytes that a move has read from or written into peers' buffers.
  void carry(const SliceMove& move, size_t bytes);
  /// kDone: what was read from peers' buffers has arrived.
  Progress await_carried();
  /// A copy with an operand in another process.
  Progress copy_between_processes(const SliceMove& move, size_t bytes);
  void release(const SliceMove& move);
  uint64_t signal_value() const { return board::signal_value(signals_, operation_->tag); }
  /// A reader of what this rank publishes. Only the transport knows which one is the slowest; on
  /// the board, the chain of waiting ranks leads from any reader to it.
  int any_reader() const { return rank_ == 0 ? 1 : 0; }
  Progress blocked(int peer, transport::Receiver* awaited = nullptr) {
    // Relaxed: other threads read it for diagnosis only.
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

  transport::Transport& transport_;
  const board::Board& board_;
  const PeerBuffers& peers_;
  const int channel_;
  const int rank_;
  const bool needs_progress_, delays_;
  // By peer; null at this rank's own place. The publisher and subscriptions are null where the
  // transport has none.
  std::vector<transport::Sender*> senders_;
  std::vector<transport::Receiver*> receivers_;
  std::vector<transport::Receiver*> subscriptions_;
  transport::Sender* publisher_ = nullptr;
  std::vector<char> refers_;  // by peer: whether its link takes references; at rank_: the publisher

  const Operation* operation_ = nullptr;
  const schedule::Geometry* geometry_ = nullptr;
  ProgramView program_{};
  Cursor cursor_;
  std::byte *in_ = nullptr, *out_ = nullptr;  // in_ is only ever read
  uint32_t budget_ = 1;                       // moves in turn
  bool may_refer_ = false;                    // In may be sent by reference
  std::vector<double> factors_;               // of the sources of the current move
  std::vector<std::byte*> located_;  // operands of the current move: sources, then destinations
  // What the current move does besides computing; set by locate(), so that no step looks in vain.
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
  int64_t ready_at_ns_ = 0;  // where no receiver is awaited
  int64_t arrives_ns_ = 0;   // when all that was read from peers' buffers arrives; 0: it has
  int carried_from_ = -1;    // a peer from which it comes
  bool mismatch_ = false;
  int copy_error_ = 0;
  Status link_error_;
  std::atomic<uint64_t> bytes_sent_{0};
  std::vector<SlotStores> slot_stores_;  // SlotStores::kKinds for each place in refers_
};

}  // namespace rondo::engine
