// The device engine: the interpreter's primitives on memory that GPUs share, for one channel, which
// is one block of threads. Its kernel is in cuda_engine.cu; everything here is plain C++ too, and a
// test walks it on the host, with threads as blocks. What differs between the two comes as template
// parameters, which device_block.hpp describes.
//
// Two protocols. Simple, NCCL's word: slots with counters. LL, for little data: lines with flags,
// no counters and no fences (ll_walk.hpp).
//
// All threads of a block call everything together and get the same answers. An operand is looked
// after by one thread, so that peers are waited for side by side; counters are advanced by it
// between the two barriers of a move, and read by anybody outside of them. Signals, waits and
// reports are the leader's, thread 0. Unlike the host's engine this one has nothing else to do, so
// that it polls for a while before it says blocked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device/channel_walk.hpp"
#include "comm/device/device_block.hpp"
#include "comm/device/device_operation.hpp"
#include "comm/device/ll.hpp"
#include "comm/device/ll_walk.hpp"

namespace rondo::engine {

/// kOnlyLl: of operations by LL, none of which asks for direct ones (DeviceOperation::staged). Without
/// the code of everything else the walk takes 3/4 of the time.
template <class Block, class Access, bool kOnlyLl = false>
class DeviceEngine : LlWalk<Block, Access> {
  using Base = LlWalk<Block, Access>;
  using Base::agree;
  using Base::block_;
  using Base::channel_;
  using Base::clear_turns;
  using Base::element_;
  using Base::finding_;
  using Base::fold;
  using Base::given_up;
  using Base::is_own;
  using Base::leads;
  using Base::links_;
  using Base::look_round;
  using Base::memory_;
  using Base::mismatch;
  using Base::operation_;
  using Base::reaches;
  using Base::share_;

 public:
  RONDO_DEVICE DeviceEngine(const DeviceLinks& links, const DeviceOperation& operation,
                            uint32_t channel, Block& block)
      : Base(links, operation, channel, block) {}

  /// Walks the channel to its end. kDone, or kFailed with a report; then later operations fail too.
  RONDO_DEVICE Progress run() {
    const bool ends = leads() && given_up();  // requested with the program: all take a while
    fetch(operation_.program, operation_.geometries);
    if (leads()) begin();
    Cursor cursor;
    uint64_t blocked_since = 0;  // 0: not blocked
    Progress made = agree(ends ? Progress::kFailed : Progress::kDone);
    if constexpr (!kOnlyLl) {
      if (made == Progress::kDone && operation_.staged != nullptr) made = choose();
    }
    if (made == Progress::kDone) made = Progress::kProgressed;
    while (made != Progress::kDone && made != Progress::kFailed) {
      made = advance(program_, part(), cursor, *this, kBudget);
      if (made == Progress::kProgressed) blocked_since = 0;
      if (made != Progress::kBlocked) continue;
      made = agree(leads() ? look_round(&blocked_since, operation_.limit_ns) : Progress::kDone);
      block_.rest();
    }
    if (leads() && made == Progress::kFailed) {
      Base::give_up([&](DeviceReport& report) {
        report.step = cursor.step;
        report.round = cursor.round;
        report.epoch = block_.shared().epoch;
        report.sequence = operation_.sequence;
      });
    }
    if (made == Progress::kDone && protocol() == Protocol::kLl)
      Base::clear_old_lines(part().rounds);
    block_.sync();  // the block's next operation begins with the same shared memory
    return made;
  }

  // The interpreter's primitives.

  RONDO_DEVICE Progress try_move(const SliceMove& move) {
    if constexpr (kOnlyLl) {
      return Base::try_move_by_ll(move);
    } else {
      if (protocol() == Protocol::kLl) return Base::try_move_by_ll(move);
      return try_move_by_slots(move);
    }
  }

  RONDO_DEVICE Progress try_wait(const schedule::Instruction& instruction) {
    return agree(leads() ? seen(instruction) : Progress::kDone);
  }

  /// What this block has written, it has written before a barrier: every move ends with one.
  RONDO_DEVICE void signal() {
    if (!leads()) return;
    const uint64_t signals = ++memory_.state().signals;
    Base::order();
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      Access::store(&memory_.line_of(peer).signal, signal_value(signals));
    }
  }

 private:
  /// Through slots, or from one buffer to another.
  RONDO_DEVICE Progress try_move_by_slots(const SliceMove& move) {
    if (move.operands[0].place == schedule::OperandKind::kIdentity) return fill(move);
    const Progress found = agree(locate(move));
    if (found != Progress::kDone) return found;
    count(move);
    fold(move, move.length);
    // All threads have read the sources, and all their writes come before any counter for a peer.
    block_.sync();
    hand_over(move);
    return Progress::kDone;
  }

  using StateLine = transport::cuda_ipc::StateLine;
  using PeerLine = transport::cuda_ipc::PeerLine;
  using InboxLine = transport::cuda_ipc::InboxLine;
  using OutboxLine = transport::cuda_ipc::OutboxLine;
  using SlotHeader = transport::cuda_ipc::SlotHeader;
  using RegistrationWord = transport::cuda_ipc::RegistrationWord;

  static constexpr uint32_t kBudget = 1u << 30;  // a block has nothing else to do

  /// To the block's own memory; a barrier comes before they are used.
  RONDO_DEVICE void fetch(const ProgramView& program, const schedule::Geometry* geometries) {
    BlockShared& shared = block_.shared();
    const size_t instructions = program.instruction_count * sizeof(schedule::Instruction);
    const size_t operands = program.operand_count * sizeof(schedule::Location);
    program_ = program;
    if (instructions + operands <= BlockShared::kProgramBytes) {
      copy_words(shared.program, program.instructions, instructions);
      copy_words(shared.program + instructions, program.operands, operands);
      program_.instructions = reinterpret_cast<const schedule::Instruction*>(shared.program);
      program_.operands =
          reinterpret_cast<const schedule::Location*>(shared.program + instructions);
    }
    copy_words(shared.part, &geometries[channel_], sizeof(schedule::Geometry));
  }
  RONDO_DEVICE void copy_words(std::byte* to, const void* from, size_t bytes) const {
    static_assert(sizeof(schedule::Instruction) % 8 == 0 && sizeof(schedule::Location) % 8 == 0 &&
                  sizeof(schedule::Geometry) % 8 == 0);
    for (size_t i = share_.thread; i < bytes / 8; i += share_.threads) {
      reinterpret_cast<uint64_t*>(to)[i] = static_cast<const uint64_t*>(from)[i];
    }
  }
  RONDO_DEVICE const schedule::Geometry& part() const {
    return *reinterpret_cast<const schedule::Geometry*>(block_.shared().part);
  }
  RONDO_DEVICE Protocol protocol() const {
    if constexpr (kOnlyLl) return Protocol::kLl;
    return staged_ ? operation_.staged->protocol : operation_.protocol;
  }

  /// Writes this thread's share of the operator's identity to Out, of any alignment.
  RONDO_DEVICE Progress fill(const SliceMove& move) {
    std::byte* const out = operation_.out + (move.operands[1].offset + move.offset) * element_;
    for (uint64_t i = share_.thread; i < move.length * element_; i += share_.threads) {
      out[i] = static_cast<std::byte>(operation_.identity >> (8 * (i % element_)));
    }
    block_.sync();
    return Progress::kDone;
  }

  RONDO_DEVICE uint64_t signal_value(uint64_t signals) const {
    return board::signal_value(signals, block_.shared().tag);
  }

  // The leader's.

  RONDO_DEVICE void begin() {
    BlockShared& shared = block_.shared();
    clear_turns();
    StateLine& own = memory_.state();
    uint64_t history = (own.history ^ operation_.fingerprint) * 0x9E3779B97F4A7C15u;
    history ^= history >> 32;
    own.history = history;
    shared.tag = history;
    shared.epoch = ++own.epoch;
    const uint64_t rounds = operation_.geometries[channel_].rounds;
    if constexpr (kOnlyLl) {
      begin_program(rounds);
    } else if (operation_.staged == nullptr) {
      begin_program(rounds);
      if (operation_.direct) post();
    } else {
      ask();
    }
  }

  RONDO_DEVICE void ask() {
    const uint64_t question = ++memory_.state().questions;
    Base::order();
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      Access::store(&memory_.line_of(peer).answers[question % 2],
                    2 * question + (is_for_peers() ? 0 : 1));
    }
  }

  /// `rounds`: of this channel's part of the program, which the other threads may still be fetching.
  RONDO_DEVICE void begin_program(uint64_t rounds) {
    BlockShared& shared = block_.shared();
    if (protocol() == Protocol::kLl && rounds > 0) {
      shared.ll_flag = ll_flag(++memory_.state().by_ll, shared.tag);
    }
  }

  /// Tells the peers where this rank's buffers are.
  RONDO_DEVICE void post() {
    const BlockShared& shared = block_.shared();
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      PeerLine& line = memory_.line_of(peer);
      Access::write(line.in, operation_.in);
      Access::write(line.out, operation_.out);
      Access::write(line.factor, operation_.factor);
      Access::write(line.tag, shared.tag);
      Access::write(line.registrations, operation_.registrations);
      Access::write(line.place, operation_.place);
    }
    Base::order();
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      Access::store(&memory_.line_of(peer).epoch, shared.epoch);
    }
  }

  RONDO_DEVICE Progress seen(const schedule::Instruction& instruction) {
    PeerLine& line = memory_.own_line(static_cast<uint32_t>(instruction.peer));
    if (instruction.flag == schedule::Flag::kPosted) {
      const bool there =
          reaches(&line.epoch, block_.shared().epoch, DeviceReport::kPost, instruction.peer);
      return there ? posted(static_cast<uint32_t>(instruction.peer)) : Progress::kBlocked;
    }
    const uint64_t signals = memory_.state().signals, own = signal_value(signals);
    if (!reaches(&line.signal, board::signal_value(signals, 0), DeviceReport::kSignal,
                 instruction.peer)) {
      return Progress::kBlocked;
    }
    // The same signal of another operation. A peer that is already further has compared ours with
    // its own.
    const uint64_t found = Access::load(&line.signal);
    if (board::signals_of(found) == signals && found != own) {
      return mismatch(DeviceReport::kSignal, instruction.peer);
    }
    return Base::compare_places(operation_, line, instruction.peer);
  }

  // Any thread's.

  /// Waits for all ranks' answers to the question of this operation, from which all choose alike.
  /// An answer stays until the next question but one, which its rank cannot ask before this rank
  /// has answered the next: so two places suffice, whatever either program waits for.
  RONDO_DEVICE Progress choose() {
    const uint64_t question = memory_.state().questions;
    uint64_t blocked_since = 0;
    Progress found = Progress::kBlocked;
    while (found != Progress::kDone) {
      found = Progress::kDone;
      for (uint32_t peer = 0; peer < links_.shape.ranks && found == Progress::kDone; ++peer) {
        if (peer == links_.rank || !is_own(peer)) continue;
        if (!reaches(&memory_.own_line(peer).answers[question % 2], 2 * question,
                     DeviceReport::kPost, static_cast<int32_t>(peer))) {
          found = Progress::kBlocked;
        }
      }
      found = agree(found);
      if (found != Progress::kBlocked) continue;
      found = agree(leads() ? look_round(&blocked_since, operation_.limit_ns) : Progress::kDone);
      if (found == Progress::kFailed) return found;
      block_.rest();
    }
    staged_ = !is_for_peers();
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank) continue;
      staged_ = staged_ || Access::load(&memory_.own_line(peer).answers[question % 2]) % 2 != 0;
    }
    if (staged_) fetch(operation_.staged->view, operation_.staged->geometries);
    if (leads()) {
      const schedule::Geometry* const all =
          staged_ ? operation_.staged->geometries : operation_.geometries;
      begin_program(all[channel_].rounds);
      if (operation_.direct && !staged_) post();
    }
    return agree(Progress::kDone);
  }

  /// Finds where this thread's operands of a move lie: what has arrived, what may be written.
  RONDO_DEVICE Progress locate(const SliceMove& move) {
    const uint32_t sources = move.instruction->sources;
    const uint32_t operands = sources + move.instruction->destinations;
    Progress found = Progress::kDone;
    for (uint32_t i = block_.number(); i < operands && found == Progress::kDone;
         i += block_.size()) {
      found = locate(move, i);
    }
    for (uint32_t i = sources; i < operands && found == Progress::kDone; ++i) {
      if (move.operands[i].place == schedule::OperandKind::kPublished) found = freed_published();
    }
    return found;
  }

  RONDO_DEVICE Progress locate(const SliceMove& move, uint32_t i) {
    const bool is_source = i < move.instruction->sources;
    BlockShared& shared = block_.shared();
    const schedule::Location& operand = move.operands[i];
    const auto peer = static_cast<uint32_t>(operand.peer);
    const uint64_t offset = (operand.offset + move.offset) * element_;
    Progress found = Progress::kDone;
    double factor = 1;
    switch (operand.place) {
      case schedule::OperandKind::kIn:
        shared.operands[i] = const_cast<std::byte*>(operation_.in) + offset;
        factor = operation_.factor;
        break;
      case schedule::OperandKind::kOut:
        shared.operands[i] = operation_.out + offset;
        break;
      case schedule::OperandKind::kPeerIn:
        found = posted(peer);
        if (found != Progress::kDone) return found;
        found = find(peer, memory_.own_line(peer).registrations.in,
                     const_cast<std::byte*>(memory_.own_line(peer).in) + offset, i);
        if (found != Progress::kDone) return found;
        factor = memory_.own_line(peer).factor;
        break;
      case schedule::OperandKind::kPeerOut:
        found = posted(peer);
        if (found != Progress::kDone) return found;
        found = find(peer, memory_.own_line(peer).registrations.out,
                     memory_.own_line(peer).out + offset, i);
        if (found != Progress::kDone) return found;
        break;
      case schedule::OperandKind::kSlot:
        found = is_source ? arrived(memory_.inbox(peer), memory_.taken(peer), links_.shape.depth,
                                    move.length, peer)
                          : freed(peer);
        if (found != Progress::kDone) return found;
        shared.operands[i] = is_source ? memory_.slot_from(peer) : memory_.slot_to(peer);
        break;
      case schedule::OperandKind::kPublished:
        if (is_source) {
          found = arrived(memory_.notice(peer), memory_.notice(peer).taken,
                          links_.shape.publish_depth, move.length, peer);
          if (found != Progress::kDone) return found;
          shared.operands[i] = memory_.published_by(peer, memory_.notice(peer).taken);
        } else {
          shared.operands[i] = memory_.published_by(links_.rank, memory_.state().published);
        }
        break;
      case schedule::OperandKind::kIdentity:  // fill() writes it
        break;
    }
    if (is_source) shared.factors[i] = factor;
    return Progress::kDone;
  }

  /// Whether peers can access this rank's buffers. The tables change only between kernels.
  RONDO_DEVICE bool is_for_peers() const {
    const auto [in, out] = operation_.registrations;
    return operation_.for_peers && (in == 0 || memory_.is_mapped(links_.rank, in)) &&
           (out == 0 || memory_.is_mapped(links_.rank, out));
  }

  /// Operand i: a peer's buffer, as this GPU has it. A mismatch: it is not registered here any more.
  RONDO_DEVICE Progress find(uint32_t peer, RegistrationWord word, std::byte* there, uint32_t i) {
    if (links_.mappings != nullptr && !memory_.is_mapped(peer, word)) {
      return mismatch(DeviceReport::kMapping, static_cast<int32_t>(peer));
    }
    block_.shared().operands[i] = there + memory_.distance(peer, word);
    return Progress::kDone;
  }

  /// The next slot of an inbox, and that it is of this operation and of this length.
  RONDO_DEVICE Progress arrived(InboxLine& from, uint64_t taken, uint32_t depth, uint64_t length,
                                uint32_t peer) {
    const auto who = static_cast<int32_t>(peer);
    if (taken == 0) Base::await_first(peer);
    if (!reaches(&from.sent, taken + 1, DeviceReport::kSlot, who)) return Progress::kBlocked;
    const SlotHeader& told = memory_.header(from, place_in(taken, depth));
    if (told.tag != block_.shared().tag || told.bytes != length * element_) {
      return mismatch(DeviceReport::kSlot, who);
    }
    return Progress::kDone;
  }

  RONDO_DEVICE Progress freed(uint32_t peer) {
    const uint64_t sent = memory_.sent(peer);
    if (sent < links_.shape.depth) return Progress::kDone;
    const bool free = reaches(&memory_.outbox(peer).freed, sent + 1 - links_.shape.depth,
                              DeviceReport::kFreeSlot, static_cast<int32_t>(peer));
    return free ? Progress::kDone : Progress::kBlocked;
  }

  /// Whether this thread's peers have freed the next published slot.
  RONDO_DEVICE Progress freed_published() {
    const uint64_t published = memory_.state().published;
    if (published < links_.shape.publish_depth) return Progress::kDone;
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      if (peer == links_.rank || !is_own(peer)) continue;
      if (!reaches(&memory_.outbox(peer).freed_published,
                   published + 1 - links_.shape.publish_depth, DeviceReport::kFreeSlot,
                   static_cast<int32_t>(peer))) {
        return Progress::kBlocked;
      }
    }
    return Progress::kDone;
  }

  /// Whether a peer's buffers of this operation are known; this rank's own program has waited for
  /// them, and the peer waits for this rank before its next operation.
  RONDO_DEVICE Progress posted(uint32_t peer) {
    const PeerLine& line = memory_.own_line(peer);
    const BlockShared& shared = block_.shared();
    if (Access::load(&line.epoch) == shared.epoch && line.tag == shared.tag) return Progress::kDone;
    return mismatch(DeviceReport::kPost, static_cast<int32_t>(peer));
  }

  /// Calls body(operand, peer) for what this thread has to tell of a move: each slot that was read
  /// or written, and a published slot once for each of its readers.
  template <class Body>
  RONDO_DEVICE void for_handed_over(const SliceMove& move, const Body& body) {
    const uint32_t sources = move.instruction->sources;
    const uint32_t operands = sources + move.instruction->destinations;
    for (uint32_t i = 0; i < operands; ++i) {
      const schedule::OperandKind place = move.operands[i].place;
      if (place == schedule::OperandKind::kPublished && i >= sources) {
        for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
          if (peer != links_.rank && is_own(peer)) body(i, peer);
        }
      } else if (place == schedule::OperandKind::kPublished ||
                 place == schedule::OperandKind::kSlot) {
        if (is_own(i)) body(i, static_cast<uint32_t>(move.operands[i].peer));
      }
    }
  }

  /// Advances the counters of this thread's operands; hand_over() publishes them to peers.
  RONDO_DEVICE void count(const SliceMove& move) {
    const uint32_t sources = move.instruction->sources;
    const uint32_t operands = sources + move.instruction->destinations;
    for (uint32_t i = block_.number(); i < operands; i += block_.size()) {
      const auto peer = static_cast<uint32_t>(move.operands[i].peer);
      if (move.operands[i].place == schedule::OperandKind::kSlot) {
        ++(i < sources ? memory_.taken(peer) : memory_.sent(peer));
      } else if (move.operands[i].place == schedule::OperandKind::kPublished) {
        ++(i < sources ? memory_.notice(peer).taken : memory_.state().published);
      }
    }
  }

  /// After the barrier that ends a move: publishes what was written, frees what was read.
  RONDO_DEVICE void hand_over(const SliceMove& move) {
    const uint32_t sources = move.instruction->sources;
    const SlotHeader told = {.tag = block_.shared().tag, .bytes = move.length * element_};
    bool tells = false;
    for_handed_over(move, [&](uint32_t i, uint32_t peer) {
      tells = true;
      if (i < sources) return;
      const bool slot = move.operands[i].place == schedule::OperandKind::kSlot;
      const uint64_t index =
          slot ? place_in(memory_.sent(peer) - 1, links_.shape.depth)
               : place_in(memory_.state().published - 1, links_.shape.publish_depth);
      Access::write(memory_.header(memory_.inbox_of(peer, slot), index), told);
    });
    if (!tells) return;  // a fence takes its time
    Base::order();
    for_handed_over(move, [&](uint32_t i, uint32_t peer) {
      const bool slot = move.operands[i].place == schedule::OperandKind::kSlot;
      if (i >= sources) {
        Access::store(&memory_.inbox_of(peer, slot).sent,
                      slot ? memory_.sent(peer) : memory_.state().published);
        return;
      }
      OutboxLine& freed = memory_.outbox_of(peer);
      Access::store(slot ? &freed.freed : &freed.freed_published,
                    slot ? memory_.taken(peer) : memory_.notice(peer).taken);
    });
  }

  ProgramView program_{};  // that is walked: by choose() perhaps another than the operation's first
  bool staged_ = false;
};

}  // namespace rondo::engine
