// Common to all walks of a channel: a block's threads agree on their findings, wait within bounds,
// and report why they gave up. Block and Access: device_block.hpp.
#pragma once

#include <cstdint>

#include "comm/device/channel_memory.hpp"
#include "comm/device/device_block.hpp"
#include "comm/device/device_operation.hpp"
#include "comm/engine/interpreter.hpp"
#include "kernels/cuda/move.hpp"

namespace rondo::engine {

template <class Block, class Access>
class ChannelWalk {
 protected:
  RONDO_DEVICE ChannelWalk(const DeviceLinks& links, uint32_t channel, Block& block)
      : links_(links),
        channel_(channel),
        block_(block),
        memory_(links, channel),
        share_{.thread = block.number(), .threads = block.size()} {}

  /// Access::order(), as far as the other ranks are away.
  RONDO_DEVICE void order() const { Access::order(links_.one_gpu); }
  RONDO_DEVICE bool leads() const { return share_.thread == 0; }
  /// Whether this thread is responsible for the `number`-th of several things.
  RONDO_DEVICE bool is_own(uint32_t number) const {
    return number % block_.size() == share_.thread;
  }

  /// Called by the leader, before anything else.
  RONDO_DEVICE void clear_turns() {
    for (BlockShared::Turn& turn : block_.shared().turns) turn.bits = 0;
  }

  /// A barrier; returns the worst of all threads' values: kDone, kBlocked or kFailed. Of three
  /// turns one is written, the previous one may still be read, and the third is cleared: all
  /// threads have read it before this barrier, and none writes it before the next.
  RONDO_DEVICE Progress agree(Progress mine) {
    BlockShared::Turn& turn = block_.shared().turns[turn_];
    if (mine == Progress::kBlocked || mine == Progress::kFailed) {
      const uint32_t i = mine == Progress::kFailed;
      if ((block_.raise(turn.bits, 1u << i) & 1u << i) == 0) turn.findings[i] = finding_;
    }
    block_.sync();
    const uint32_t bits = turn.bits;
    const uint32_t before = (turn_ + 2) % 3;
    turn_ = (turn_ + 1) % 3;
    if (leads()) block_.shared().turns[before].bits = 0;
    if (bits == 0) return Progress::kDone;
    finding_ = turn.findings[bits >> 1];
    return bits >> 1 != 0 ? Progress::kFailed : Progress::kBlocked;
  }

  RONDO_DEVICE bool given_up() {
    finding_.why = DeviceReport::kAborted;
    return Access::peek(&memory_.raised(links_.rank)) != 0;
  }

  /// Called by the leader after a blocked attempt: whether to continue.
  RONDO_DEVICE Progress look_round(uint64_t* blocked_since, uint64_t limit_ns) {
    // Reads of host memory are slow: only a waiting leader makes them.
    if (given_up() || Access::peek(links_.host_abort) != 0) return Progress::kFailed;
    const uint64_t now = block_.now_ns();
    const bool begins = *blocked_since == 0;
    if (!begins && now - *blocked_since < limit_ns) return Progress::kBlocked;
    if (begins) {
      *blocked_since = now;
      return Progress::kBlocked;
    }
    finding_.why = DeviceReport::kTimeout;
    return Progress::kFailed;
  }

  /// Before waiting for a peer's first slot.
  RONDO_DEVICE void await_first(uint32_t peer) const {
    if (memory_.is_far(peer)) Access::store(&memory_.awaits_first(peer), 1);
  }

  /// Polls for a while until `counter` is at least `value`.
  RONDO_DEVICE bool reaches(const uint64_t* counter, uint64_t value, DeviceReport::Awaited what,
                            int32_t peer, uint32_t polls = Block::kPolls) {
    for (uint32_t poll = 0; poll < polls; ++poll) {
      if (Access::peek(counter) < value) continue;
      (void)Access::load(counter);  // counters only grow: acquires the data released with them
      return true;
    }
    finding_ = {DeviceReport::kNot, what, peer};
    return false;
  }

  RONDO_DEVICE Progress mismatch(DeviceReport::Awaited what, int32_t peer) {
    finding_ = {DeviceReport::kMismatch, what, peer};
    return Progress::kFailed;
  }

  /// The leader's. Whether a peer, which has signalled, copies from the place where this rank does,
  /// if they must. Its line is of this operation until this rank has signalled once more.
  RONDO_DEVICE Progress compare_places(const DeviceOperation& operation,
                                       const transport::cuda_ipc::PeerLine& line, int32_t peer) {
    if (!operation.symmetric) return Progress::kDone;
    const transport::cuda_ipc::RegistrationWord own = operation.registrations.in;
    if (links_.mappings != nullptr && !memory_.is_mapped(static_cast<uint32_t>(peer), own)) {
      return mismatch(DeviceReport::kEnded, peer);
    }
    const bool same = line.place == operation.place && line.registrations.in == own;
    if (same) return Progress::kDone;
    DeviceReport& report = links_.reports[channel_];  // which give_up() completes
    report.place = operation.place;
    report.found = line.place;
    return mismatch(DeviceReport::kPlace, peer);
  }

  /// The leader's. Writes the report and raises the abort words: the other channels and all peers
  /// see them at their next look round. `fill` adds the walk's part of the report.
  template <class Fill>
  RONDO_DEVICE void give_up(const Fill& fill) {
    DeviceReport& report = links_.reports[channel_];
    if (report.ended == DeviceReport::kNot) {  // field by field: `whole` is read meanwhile
      report.ended = finding_.why;
      report.awaited = finding_.awaited;
      report.peer = finding_.peer;
      fill(report);
    }
    Access::order(false);  // the host reads it
    Access::store(&report.whole, 1);
    for (uint32_t rank = 0; rank < links_.shape.ranks; ++rank) {
      if (!memory_.is_far(rank)) Access::store(&memory_.raised(rank), 1);
    }
  }

  const DeviceLinks& links_;
  const uint32_t channel_;
  Block& block_;
  const ChannelMemory memory_;
  const kernels::cuda::Share share_;
  Finding finding_ = {DeviceReport::kNot, DeviceReport::kNothing, -1};

 private:
  uint32_t turn_ = 0;  // in agree()
};

}  // namespace rondo::engine
