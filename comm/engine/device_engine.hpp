// The device engine: the interpreter's primitives on memory that GPUs share, for one channel, which
// is one block of threads. Slots with counters (NCCL calls that protocol Simple). Its kernel is in
// cuda_engine.cu; everything here is plain C++ too, and a test walks it on the host, with threads as
// blocks. What differs between the two comes as template parameters:
//
//   Block    bool leads() (one thread of the block); void sync() (a barrier, after which everybody
//            sees what everybody wrote); BlockShared& shared(); void move(type, op, Move), this
//            thread's share of it; uint64_t now_ns(); kPolls, and void rest() after as many polls
//            in vain
//   Access   words that GPUs and hosts share: peek(const uint64_t*) reads one, load() acquires too;
//            order() before store(uint64_t*, value) makes that store a release: one for many stores
//
// All threads of a block call everything together and get the same answers. The leader alone looks
// at counters; what it finds travels through BlockShared. Unlike the host's engine this one has
// nothing else to do, so that it polls for a while before it says blocked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/engine/interpreter.hpp"
#include "kernels/cuda/dispatch.hpp"
#include "transport/cuda_ipc/layout.hpp"

namespace rondo::engine {

inline constexpr uint32_t kMaxDeviceRanks = 64;

/// Why a channel gave up first, and for what it waited then; one per channel, read by the host, which
/// has cleared it. What goes well writes nothing: this is the host's memory, and far away.
struct DeviceReport {
  enum Ended : uint32_t { kNot, kAborted, kTimeout, kMismatch };
  enum Awaited : uint32_t { kNothing, kSlot, kFreeSlot, kSignal, kPost };
  Ended ended;
  Awaited awaited;
  int32_t peer;
  uint32_t step;  // instruction of the program
  uint64_t round;
  uint64_t epoch;
  uint64_t sequence = 0;  // DeviceOperation's
  uint64_t whole = 0;     // 1: all of it is there; written last
};

/// What a rank's kernels know of their surroundings, the same for every operation. Trivially
/// copyable.
struct DeviceLinks {
  transport::cuda_ipc::Shape shape;
  uint32_t rank;
  std::byte* const* segments;  // [rank], where this rank's GPU has them
  const uint64_t* host_abort;  // not 0: who waits gives up
  DeviceReport* reports;       // [channel]
};

/// One operation. Trivially copyable; a replayed graph brings the same one again.
struct DeviceOperation {
  ProgramView program;
  const schedule::Geometry* geometries;  // [channel]
  const std::byte* in;
  std::byte* out;
  DataType type;
  ReduceOp op;
  bool direct;       // peers touch these buffers: they are told where they are
  uint32_t divisor;  // in finishing moves
  bool scaled;       // In is multiplied by `factor` wherever it is read
  double factor;
  uint64_t fingerprint;   // of the call: what all ranks must agree on
  uint64_t limit_ns;      // without any movement of this channel
  uint64_t sequence = 0;  // the host's number for the call, for reports
};

/// What a block's threads share.
struct BlockShared {
  std::byte* operands[2 * (kMaxDeviceRanks + 1)];  // sources, then destinations
  double factors[kMaxDeviceRanks + 1];
  Progress found[2];
};

template <class Block, class Access>
class DeviceEngine {
 public:
  RONDO_DEVICE DeviceEngine(const DeviceLinks& links, const DeviceOperation& operation,
                            uint32_t channel, Block& block)
      : links_(links),
        operation_(operation),
        channel_(channel),
        block_(block),
        layout_(links.shape),
        element_(size_of(operation.type)) {}

  /// Walks the channel to its end. kDone, or kFailed with a report; then later operations fail too.
  RONDO_DEVICE Progress run() {
    begin();
    Cursor cursor;
    uint64_t blocked_since = 0;  // 0: not blocked
    Progress made = Progress::kProgressed;
    if (block_.leads() && given_up()) made = Progress::kFailed;
    made = tell(made);
    while (made != Progress::kDone && made != Progress::kFailed) {
      made = advance(operation_.program, operation_.geometries[channel_], cursor, *this, kBudget);
      if (made == Progress::kProgressed) blocked_since = 0;
      if (made != Progress::kBlocked) continue;
      if (block_.leads()) made = look_round(&blocked_since);
      made = tell(made);
      block_.rest();
    }
    if (block_.leads() && made == Progress::kFailed) give_up(cursor);
    block_.sync();  // the block's next operation begins with the same shared memory
    return made;
  }

  // The interpreter's primitives.

  RONDO_DEVICE Progress try_move(const SliceMove& move) {
    const schedule::Instruction& instruction = *move.instruction;
    Progress found = Progress::kDone;
    if (block_.leads()) found = locate(move);
    found = tell(found);
    if (found != Progress::kDone) return found;
    bool scales = false;
    for (uint32_t i = 0; operation_.scaled && i < instruction.sources; ++i) {
      const schedule::Place place = move.operands[i].place;
      scales = scales || place == schedule::Place::kIn || place == schedule::Place::kPeerIn;
    }
    BlockShared& shared = block_.shared();
    const kernels::Move whole = {.sources = shared.operands,
                                 .destinations = shared.operands + instruction.sources,
                                 .source_count = instruction.sources,
                                 .destination_count = instruction.destinations,
                                 .count = move.length,
                                 .divisor = instruction.finishes ? operation_.divisor : 1,
                                 .nontemporal = 0,
                                 .factors = scales ? shared.factors : nullptr};
    block_.move(operation_.type, operation_.op, whole);
    // All have read the sources, and all that they wrote comes before what the leader tells peers.
    block_.sync();
    if (block_.leads()) hand_over(move);
    return Progress::kDone;
  }

  RONDO_DEVICE Progress try_wait(const schedule::Instruction& instruction) {
    Progress found = Progress::kDone;
    if (block_.leads()) found = seen(instruction);
    return tell(found);
  }

  /// What this block has written, it has written before a barrier: every move ends with one.
  RONDO_DEVICE void signal() {
    if (!block_.leads()) return;
    const uint64_t signals = ++state().signals;
    Access::order();
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      Access::store(&at<PeerLine>(peer, layout_.peer(channel_, links_.rank)).signal,
                    signal_value(signals));
    }
  }

 private:
  using AbortLine = transport::cuda_ipc::AbortLine;
  using StateLine = transport::cuda_ipc::StateLine;
  using PeerLine = transport::cuda_ipc::PeerLine;
  using InboxLine = transport::cuda_ipc::InboxLine;
  using OutboxLine = transport::cuda_ipc::OutboxLine;
  using Header = transport::cuda_ipc::Header;

  static constexpr uint32_t kBudget = 1u << 30;  // a block has nothing else to do
  static constexpr int kTagBits = 20;            // of a signal, as on the host

  template <class Line>
  RONDO_DEVICE Line& at(uint32_t rank, size_t offset) const {
    return *reinterpret_cast<Line*>(links_.segments[rank] + offset);
  }
  static RONDO_DEVICE Header& header(InboxLine& inbox, uint64_t index) {
    return reinterpret_cast<Header*>(&inbox + 1)[index];
  }

  /// What the leader has found, to everybody. Two places in turn: nobody writes the one that
  /// somebody may still read, because all have been at the barrier in between.
  RONDO_DEVICE Progress tell(Progress found) {
    BlockShared& shared = block_.shared();
    if (block_.leads()) shared.found[turn_] = found;
    block_.sync();
    found = shared.found[turn_];
    turn_ ^= 1;
    return found;
  }

  RONDO_DEVICE uint64_t signal_value(uint64_t signals) const {
    return signals << kTagBits | (tag_ & ((uint64_t{1} << kTagBits) - 1));
  }

  // From here on: the leader's.

  RONDO_DEVICE void begin() {
    if (!block_.leads()) return;
    StateLine& own = state();
    uint64_t history = (own.history ^ operation_.fingerprint) * 0x9E3779B97F4A7C15u;
    history ^= history >> 32;
    tag_ = own.history = history;
    epoch_ = ++own.epoch;
    if (!operation_.direct) return;
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      PeerLine& line = at<PeerLine>(peer, layout_.peer(channel_, links_.rank));
      line.in = operation_.in;
      line.out = operation_.out;
      line.factor = operation_.factor;
      line.tag = tag_;
    }
    Access::order();
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      Access::store(&at<PeerLine>(peer, layout_.peer(channel_, links_.rank)).epoch, epoch_);
    }
  }

  /// Reports, and tells everybody: the other channels and all peers see it when they next look
  /// round.
  RONDO_DEVICE void give_up(const Cursor& cursor) {
    DeviceReport& report = links_.reports[channel_];
    if (report.ended == DeviceReport::kNot) {
      report = {.ended = why_,
                .awaited = awaited_,
                .peer = awaited_peer_,
                .step = cursor.step,
                .round = cursor.round,
                .epoch = epoch_,
                .sequence = operation_.sequence};
    }
    Access::order();
    Access::store(&report.whole, 1);
    for (uint32_t rank = 0; rank < links_.shape.ranks; ++rank) {
      Access::store(&at<AbortLine>(rank, layout_.abort()).raised, 1);
    }
  }

  RONDO_DEVICE bool given_up() {
    why_ = DeviceReport::kAborted;
    return Access::peek(&at<AbortLine>(links_.rank, layout_.abort()).raised) != 0;
  }

  /// After a blocked try: whether to go on.
  RONDO_DEVICE Progress look_round(uint64_t* blocked_since) {
    // The host's memory is far away: only those who wait look there.
    if (given_up() || Access::peek(links_.host_abort) != 0) return Progress::kFailed;
    const uint64_t now = block_.now_ns();
    if (*blocked_since == 0) *blocked_since = now;
    if (now - *blocked_since < operation_.limit_ns) return Progress::kBlocked;
    why_ = DeviceReport::kTimeout;
    return Progress::kFailed;
  }

  /// Polls until `counter` has come to `value` at least, for a while.
  RONDO_DEVICE bool reaches(const uint64_t* counter, uint64_t value, DeviceReport::Awaited what,
                            int32_t peer) {
    for (uint32_t poll = 0; poll < Block::kPolls; ++poll) {
      if (Access::peek(counter) < value) continue;
      (void)Access::load(counter);  // counters never fall: acquires what was released with them
      return true;
    }
    awaited_ = what;
    awaited_peer_ = peer;
    return false;
  }

  RONDO_DEVICE Progress mismatch(DeviceReport::Awaited what, int32_t peer) {
    why_ = DeviceReport::kMismatch;
    awaited_ = what;
    awaited_peer_ = peer;
    return Progress::kFailed;
  }

  /// Finds where the operands of a move lie: what has arrived, what may be written.
  RONDO_DEVICE Progress locate(const SliceMove& move) {
    const uint32_t sources = move.instruction->sources;
    const uint32_t operands = sources + move.instruction->destinations;
    BlockShared& shared = block_.shared();
    for (uint32_t i = 0; i < operands; ++i) {
      const schedule::Location& operand = move.operands[i];
      const auto peer = static_cast<uint32_t>(operand.peer);
      const uint64_t offset = (operand.offset + move.offset) * element_;
      Progress found = Progress::kDone;
      switch (operand.place) {
        case schedule::Place::kIn:
          shared.operands[i] = const_cast<std::byte*>(operation_.in) + offset;
          break;
        case schedule::Place::kOut:
          shared.operands[i] = operation_.out + offset;
          break;
        case schedule::Place::kPeerIn:
          found = posted(peer);
          if (found != Progress::kDone) return found;
          shared.operands[i] = const_cast<std::byte*>(own_line(peer).in) + offset;
          break;
        case schedule::Place::kPeerOut:
          found = posted(peer);
          if (found != Progress::kDone) return found;
          shared.operands[i] = own_line(peer).out + offset;
          break;
        case schedule::Place::kSlot:
          found = i < sources ? arrived(inbox(peer), links_.shape.depth, move.length, peer)
                              : freed(peer);
          if (found != Progress::kDone) return found;
          shared.operands[i] = i < sources ? slot_from(peer) : slot_to(peer);
          break;
        case schedule::Place::kPublished:
          found = i < sources ? arrived(notice(peer), links_.shape.publish_depth, move.length, peer)
                              : freed_by_all();
          if (found != Progress::kDone) return found;
          shared.operands[i] = i < sources ? published_by(peer, notice(peer).taken)
                                           : published_by(links_.rank, state().published);
          break;
      }
      if (i < sources) {
        shared.factors[i] = operand.place == schedule::Place::kIn       ? operation_.factor
                            : operand.place == schedule::Place::kPeerIn ? own_line(peer).factor
                                                                        : 1;
      }
    }
    return Progress::kDone;
  }

  RONDO_DEVICE StateLine& state() const {
    return at<StateLine>(links_.rank, layout_.state(channel_));
  }
  RONDO_DEVICE PeerLine& own_line(uint32_t peer) const {
    return at<PeerLine>(links_.rank, layout_.peer(channel_, peer));
  }
  RONDO_DEVICE InboxLine& inbox(uint32_t writer) const {
    return at<InboxLine>(links_.rank, layout_.inbox(channel_, writer));
  }
  RONDO_DEVICE InboxLine& notice(uint32_t writer) const {
    return at<InboxLine>(links_.rank, layout_.notice(channel_, writer));
  }
  RONDO_DEVICE OutboxLine& outbox(uint32_t reader) const {
    return at<OutboxLine>(links_.rank, layout_.outbox(channel_, reader));
  }
  RONDO_DEVICE std::byte* slot_from(uint32_t peer) const {
    const uint64_t index = inbox(peer).taken % links_.shape.depth;
    return links_.segments[links_.rank] + layout_.slot(channel_, peer, index);
  }
  RONDO_DEVICE std::byte* slot_to(uint32_t peer) const {
    const uint64_t index = outbox(peer).sent % links_.shape.depth;
    return links_.segments[peer] + layout_.slot(channel_, links_.rank, index);
  }
  RONDO_DEVICE std::byte* published_by(uint32_t writer, uint64_t number) const {
    const uint64_t index = number % links_.shape.publish_depth;
    return links_.segments[writer] + layout_.published_slot(channel_, index);
  }

  /// The next slot of an inbox, and that it is of this operation and of this length.
  RONDO_DEVICE Progress arrived(InboxLine& from, uint32_t depth, uint64_t length, uint32_t peer) {
    const auto who = static_cast<int32_t>(peer);
    if (!reaches(&from.sent, from.taken + 1, DeviceReport::kSlot, who)) return Progress::kBlocked;
    const Header& told = header(from, from.taken % depth);
    if (told.tag != tag_ || told.bytes != length * element_) {
      return mismatch(DeviceReport::kSlot, who);
    }
    return Progress::kDone;
  }

  RONDO_DEVICE Progress freed(uint32_t peer) {
    OutboxLine& to = outbox(peer);
    if (to.sent < links_.shape.depth) return Progress::kDone;
    const bool free = reaches(&to.freed, to.sent + 1 - links_.shape.depth, DeviceReport::kFreeSlot,
                              static_cast<int32_t>(peer));
    return free ? Progress::kDone : Progress::kBlocked;
  }

  RONDO_DEVICE Progress freed_by_all() {
    const uint64_t published = state().published;
    if (published < links_.shape.publish_depth) return Progress::kDone;
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      if (!reaches(&outbox(peer).freed_published, published + 1 - links_.shape.publish_depth,
                   DeviceReport::kFreeSlot, static_cast<int32_t>(peer))) {
        return Progress::kBlocked;
      }
    }
    return Progress::kDone;
  }

  /// Whether a peer's buffers of this operation are known; this rank's own program has waited for
  /// them, and the peer waits for this rank before it goes on to other ones.
  RONDO_DEVICE Progress posted(uint32_t peer) {
    const PeerLine& line = own_line(peer);
    if (Access::load(&line.epoch) == epoch_ && line.tag == tag_) return Progress::kDone;
    return mismatch(DeviceReport::kPost, static_cast<int32_t>(peer));
  }

  RONDO_DEVICE Progress seen(const schedule::Instruction& instruction) {
    PeerLine& line = own_line(static_cast<uint32_t>(instruction.peer));
    if (instruction.flag == schedule::Flag::kPosted) {
      const bool there = reaches(&line.epoch, epoch_, DeviceReport::kPost, instruction.peer);
      return there ? posted(static_cast<uint32_t>(instruction.peer)) : Progress::kBlocked;
    }
    const uint64_t own = signal_value(state().signals);
    if (!reaches(&line.signal, own >> kTagBits << kTagBits, DeviceReport::kSignal,
                 instruction.peer)) {
      return Progress::kBlocked;
    }
    // The same signal of another operation. A peer that is already further has compared ours with
    // its own.
    const uint64_t found = Access::load(&line.signal);
    if (found >> kTagBits == own >> kTagBits && found != own) {
      return mismatch(DeviceReport::kSignal, instruction.peer);
    }
    return Progress::kDone;
  }

  /// After the barrier that ends a move: publishes what was written, frees what was read.
  RONDO_DEVICE void hand_over(const SliceMove& move) {
    const uint32_t sources = move.instruction->sources;
    const uint32_t operands = sources + move.instruction->destinations;
    const Header told = {.tag = tag_, .bytes = move.length * element_};
    for (uint32_t i = sources; i < operands; ++i) announce(move.operands[i], told);
    Access::order();
    for (uint32_t i = sources; i < operands; ++i) count_sent(move.operands[i]);
    for (uint32_t i = 0; i < sources; ++i) count_freed(move.operands[i]);
  }

  RONDO_DEVICE void announce(const schedule::Location& to, const Header& told) {
    if (to.place == schedule::Place::kSlot) {
      const auto peer = static_cast<uint32_t>(to.peer);
      header(at<InboxLine>(peer, layout_.inbox(channel_, links_.rank)),
             outbox(peer).sent % links_.shape.depth) = told;
    } else if (to.place == schedule::Place::kPublished) {
      const uint64_t index = state().published % links_.shape.publish_depth;
      for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
        if (peer == links_.rank) continue;
        header(at<InboxLine>(peer, layout_.notice(channel_, links_.rank)), index) = told;
      }
    }
  }

  RONDO_DEVICE void count_sent(const schedule::Location& to) {
    if (to.place == schedule::Place::kSlot) {
      const auto peer = static_cast<uint32_t>(to.peer);
      Access::store(&at<InboxLine>(peer, layout_.inbox(channel_, links_.rank)).sent,
                    ++outbox(peer).sent);
    } else if (to.place == schedule::Place::kPublished) {
      const uint64_t published = ++state().published;
      for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
        if (peer == links_.rank) continue;
        Access::store(&at<InboxLine>(peer, layout_.notice(channel_, links_.rank)).sent, published);
      }
    }
  }

  RONDO_DEVICE void count_freed(const schedule::Location& from) {
    const auto peer = static_cast<uint32_t>(from.peer);
    if (from.place == schedule::Place::kSlot) {
      Access::store(&at<OutboxLine>(peer, layout_.outbox(channel_, links_.rank)).freed,
                    ++inbox(peer).taken);
    } else if (from.place == schedule::Place::kPublished) {
      Access::store(&at<OutboxLine>(peer, layout_.outbox(channel_, links_.rank)).freed_published,
                    ++notice(peer).taken);
    }
  }

  const DeviceLinks& links_;
  const DeviceOperation& operation_;
  const uint32_t channel_;
  Block& block_;
  const transport::cuda_ipc::Layout layout_;
  const uint64_t element_;
  uint32_t turn_ = 0;
  // The leader's.
  uint64_t tag_ = 0, epoch_ = 0;
  DeviceReport::Ended why_ = DeviceReport::kNot;
  DeviceReport::Awaited awaited_ = DeviceReport::kNothing;
  int32_t awaited_peer_ = -1;
};

}  // namespace rondo::engine
