// Operations by LL, for one channel: what a block sends and folds in lines (ll.hpp), and when an area may
// be written again. And how a block folds at all. Block and Access: device_block.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device/channel_walk.hpp"
#include "comm/device/device_block.hpp"
#include "comm/device/device_operation.hpp"
#include "comm/device/ll.hpp"

namespace rondo::engine {

template <class Block, class Access>
class LlWalk : protected ChannelWalk<Block, Access> {
  using Base = ChannelWalk<Block, Access>;

 protected:
  using Base::agree;
  using Base::block_;
  using Base::finding_;
  using Base::links_;
  using Base::memory_;
  using Base::mismatch;
  using Base::share_;

  RONDO_DEVICE LlWalk(const DeviceLinks& links, const DeviceOperation& operation, uint32_t channel,
                      Block& block)
      : Base(links, channel, block), operation_(operation), element_(size_of(operation.type)) {}

  /// This thread's share of a move of `length` elements whose operands are in BlockShared.
  RONDO_DEVICE void fold(const SliceMove& move, uint64_t length) {
    const schedule::Instruction& instruction = *move.instruction;
    BlockShared& shared = block_.shared();
    block_.move(operation_.type, operation_.op,
                {.sources = shared.operands,
                 .destinations = shared.operands + instruction.sources,
                 .source_count = instruction.sources,
                 .destination_count = instruction.destinations,
                 .count = length,
                 .divisor = instruction.finishes ? operation_.divisor : 1,
                 .nontemporal = 0,
                 .factors = scales(move) ? shared.factors : nullptr});
  }
  RONDO_DEVICE bool scales(const SliceMove& move) const {
    for (uint32_t i = 0; operation_.scaled && i < move.instruction->sources; ++i) {
      const schedule::OperandKind place = move.operands[i].place;
      if (place == schedule::OperandKind::kIn || place == schedule::OperandKind::kPeerIn)
        return true;
    }
    return false;
  }

  // LL. A channel's part of an operation is one slice (fits_ll()). Its lines go straight into an
  // area of each reader's memory, of which every pair of ranks has two per channel; operation
  // number n, of those by LL, uses area n % 2.
  //
  // Nothing says that an area is free, and nothing has to. In such an operation every rank writes
  // to every other and reads from every other. When A writes as number n + 2, it has ended n + 1,
  // so it has read there what B wrote as n + 1; and B wrote that after it had ended n, with a
  // barrier of its block in between, if not the end of its kernel. So B no longer reads what A
  // wrote as n, which is what A now overwrites. Operations by slots in between change nothing: they use
  // other memory, and n does not count them.
  //
  // A reader tells lines apart by their flag, which begins anew after kLlNumbers operations. A line
  // as old as that may be left by a longer message; so every half of that many operations both
  // areas are cleared, by their reader.

  RONDO_DEVICE Progress try_move_by_ll(const SliceMove& move) {
    for (uint32_t i = 0; i < move.instruction->destinations; ++i) {
      if (move.operands[move.instruction->sources + i].place == schedule::OperandKind::kPublished) {
        send_by_ll(move);
        return Progress::kDone;
      }
    }
    return try_fold_by_ll(move);
  }

  RONDO_DEVICE uint32_t ll_turn() const { return block_.shared().ll_flag >> 16 & 1; }
  RONDO_DEVICE std::byte* user(const schedule::Location& operand, const SliceMove& move) const {
    const uint64_t offset = (operand.offset + move.offset) * element_;
    return operand.place == schedule::OperandKind::kIn
               ? const_cast<std::byte*>(operation_.in) + offset
               : operation_.out + offset;
  }

  /// In, multiplied where it is to be, to all peers; and to Out, if that is a destination too.
  /// Never blocked.
  RONDO_DEVICE void send_by_ll(const SliceMove& move) {
    const schedule::Instruction& instruction = *move.instruction;
    const std::byte* const in = user(move.operands[0], move);
    BlockShared& shared = block_.shared();
    const uint64_t bytes = move.length * element_;
    const uint32_t turn = ll_turn();
    const auto area = [&](uint32_t peer) {
      return peer == links_.rank ? nullptr : memory_.ll_area(peer, links_.rank, turn);
    };
    const bool scaled = scales(move);
    // In this rank's area of its own, in which nobody looks for lines: moves write to device memory.
    auto* const product =
        reinterpret_cast<std::byte*>(memory_.ll_area(links_.rank, links_.rank, turn));
    if (scaled) {
      block_.move(operation_.type, operation_.op,
                  {.sources = &in,
                   .destinations = &product,
                   .source_count = 1,
                   .destination_count = 1,
                   .count = move.length,
                   .divisor = 1,
                   .nontemporal = 0,
                   .factors = &operation_.factor});
      block_.sync();
    }
    ll_write<Access>(scaled ? product : in, bytes, shared.ll_flag, links_.shape.ranks, share_,
                     area);
    if (scaled) block_.sync();  // before that area is used again
    for (uint32_t i = 0; i < instruction.destinations; ++i) {
      const schedule::Location& to = move.operands[instruction.sources + i];
      if (to.place != schedule::OperandKind::kOut) continue;
      std::byte* const out = user(to, move);
      block_.move(operation_.type, operation_.op,
                  {.sources = &in,
                   .destinations = &out,
                   .source_count = 1,
                   .destination_count = 1,
                   .count = move.length,
                   .divisor = instruction.finishes ? operation_.divisor : 1,
                   .nontemporal = 0,
                   .factors = scaled ? &operation_.factor : nullptr});
    }
  }

  /// Copies lines to the block's own memory and folds them there like other operands, piece by
  /// piece, as that memory is small; after a blocked try it continues with the same piece.
  RONDO_DEVICE Progress try_fold_by_ll(const SliceMove& move) {
    const uint32_t sources = move.instruction->sources;
    const uint32_t operands = sources + move.instruction->destinations;
    BlockShared& shared = block_.shared();
    const uint64_t bytes = move.length * element_;
    const uint32_t turn = ll_turn();
    const uint32_t most = BlockShared::kStageBytes / 16 / sources * 16;  // of each source
    while (ll_done_ < bytes) {
      const uint32_t piece =
          bytes - ll_done_ < most ? static_cast<uint32_t>(bytes - ll_done_) : most;
      for (uint32_t i = block_.number(); i < operands; i += block_.size()) {
        const bool staged = move.operands[i].place == schedule::OperandKind::kPublished;
        shared.operands[i] =
            staged ? shared.stage + i * most : user(move.operands[i], move) + ll_done_;
        if (i < sources) shared.factors[i] = staged ? 1 : operation_.factor;
      }
      const auto area = [&](uint32_t i) {
        const schedule::Location& from = move.operands[i];
        return from.place == schedule::OperandKind::kPublished
                   ? memory_.ll_area(links_.rank, static_cast<uint32_t>(from.peer), turn) +
                         ll_done_ / kLlData
                   : nullptr;
      };
      const LlFound lines = ll_read<Access>(
          sources, static_cast<uint32_t>(ll_lines(piece)), shared.ll_flag, Block::kPolls, share_,
          area, [&](uint32_t i, uint32_t line, uint64_t data) {
            kernels::cuda::store_aligned(shared.stage + i * most + line * kLlData, data);
          });
      Progress found = Progress::kDone;
      if (lines.arrival != Arrival::kHere) {
        const int32_t peer = move.operands[lines.area].peer;
        finding_ = {DeviceReport::kNot, DeviceReport::kSlot, peer};
        found = lines.arrival == Arrival::kMissing ? Progress::kBlocked
                                                   : mismatch(DeviceReport::kSlot, peer);
      }
      found = agree(found);
      if (found != Progress::kDone) return found;
      fold(move, piece / element_);
      block_.sync();  // before stage and operands are used again
      ll_done_ += piece;
    }
    ll_done_ = 0;
    return Progress::kDone;
  }

  /// At the end of an operation. No peer writes there before this rank's next LL operation shows
  /// that this one has ended; the fence and the barriers after it keep that order, also within one
  /// launch. Two in a row clear both areas.
  RONDO_DEVICE void clear_old_lines(uint64_t rounds) {
    const uint32_t number = block_.shared().ll_flag >> 16 & (kLlNumbers - 1);
    if (rounds == 0 || number % (kLlNumbers / 2) > 1) return;
    for (uint32_t peer = 0; peer < links_.shape.ranks; ++peer) {
      for (size_t i = share_.thread; i < ll_lines(links_.shape.ll_bytes); i += share_.threads) {
        Access::store_ll(memory_.ll_area(links_.rank, peer, ll_turn()) + i, {});
      }
    }
    Base::order();
  }

  const DeviceOperation& operation_;
  const uint32_t element_;  // bytes

 private:
  uint64_t ll_done_ = 0;  // bytes of a move by LL that are folded
};

}  // namespace rondo::engine
