// Messages on a device: all lanes of a group side by side, on channels of their own, each of which
// moves its part of every message. One block of threads walks a channel, as with DeviceEngine; in
// whatever order ranks name their messages, a lane waits for nothing but its own counterpart.
//
// A message is a row of slots that bear its type and count, so that the reader can tell one that
// does not fit; the first channel has a slot even where there are no elements. A rank's lane to
// itself is like any other.
#pragma once

#include "comm/device/channel_walk.hpp"

namespace rondo::engine {

template <class Block, class Access>
class DeviceMessages : ChannelWalk<Block, Access> {
  using Base = ChannelWalk<Block, Access>;
  using Base::agree;
  using Base::block_;
  using Base::channel_;
  using Base::finding_;
  using Base::is_own;
  using Base::leads;
  using Base::links_;
  using Base::memory_;

 public:
  /// `number`: of the channel among those for messages.
  RONDO_DEVICE DeviceMessages(const DeviceLinks& links, const DeviceGroup& group, uint32_t number,
                              Block& block)
      : Base(links, links.shape.channels - links.shape.message_channels + number, block),
        group_(group),
        number_(number) {}

  /// kDone, or kFailed with a report; then later messages and operations fail too.
  RONDO_DEVICE Progress run() {
    if (leads()) Base::clear_turns();
    for (uint32_t l = block_.number(); l < group_.lane_count; l += block_.size()) {
      lane(l) = {.moved = 0, .message = l == 0 ? 0U : group_.lane_ends[l - 1], .ready = false};
    }
    uint64_t blocked_since = 0;  // 0: not blocked
    uint32_t vain = 0;
    Progress made = agree(leads() && Base::given_up() ? Progress::kFailed : Progress::kDone);
    while (made != Progress::kFailed) {
      made = agree(look());
      if (made == Progress::kDone && !is_left()) break;
      if (made == Progress::kFailed) break;
      if (move_what_is_ready()) {
        blocked_since = vain = 0;
        continue;
      }
      if (++vain % kLooks != 0) continue;
      made = agree(leads() ? Base::look_round(&blocked_since, group_.limit_ns) : Progress::kDone);
      block_.rest();
    }
    if (leads() && made == Progress::kFailed) report();
    block_.sync();  // what comes next begins with the same shared memory
    return made == Progress::kFailed ? made : Progress::kDone;
  }

 private:
  using InboxLine = transport::cuda_ipc::InboxLine;
  using OutboxLine = transport::cuda_ipc::OutboxLine;
  using SlotHeader = transport::cuda_ipc::SlotHeader;

  // Below, a message is not worth a second channel.
  static constexpr uint64_t kLeastPart = 32 << 10;

  // At all lanes, before looking round.
  static constexpr uint32_t kLooks = Block::kPolls / 16;

  struct ByteRange {
    uint64_t begin, end;  // bytes of the message
  };

  RONDO_DEVICE BlockShared::LaneProgress& lane(uint32_t l) { return block_.shared().lanes[l]; }
  RONDO_DEVICE bool has_ended(uint32_t l) { return lane(l).message == group_.lane_ends[l]; }
  RONDO_DEVICE const DeviceMessage& message(uint32_t l) { return group_.messages[lane(l).message]; }
  RONDO_DEVICE bool is_left() {
    for (uint32_t l = 0; l < group_.lane_count; ++l) {
      if (!has_ended(l)) return true;
    }
    return false;
  }

  /// This channel's part: the same at both ends, for it follows from what they must have alike.
  RONDO_DEVICE ByteRange part(const DeviceMessage& message) const {
    const uint64_t bytes = message.bytes(), channels = links_.shape.message_channels;
    uint64_t each = ((bytes + channels - 1) / channels + 127) / 128 * 128;
    if (each < kLeastPart) each = kLeastPart;
    const uint64_t begin = number_ * each < bytes ? number_ * each : bytes;
    return {begin, begin + each < bytes ? begin + each : bytes};
  }
  RONDO_DEVICE bool is_empty(const ByteRange& part) const {
    return part.begin == part.end && number_ > 0;
  }
  RONDO_DEVICE uint64_t piece(uint32_t l) {
    const ByteRange whole = part(message(l));
    const uint64_t left = whole.end - whole.begin - lane(l).moved;
    return left < links_.shape.slot_bytes ? left : links_.shape.slot_bytes;
  }

  /// Whether a slot of this thread's lanes can be moved. kBlocked: of some it cannot.
  RONDO_DEVICE Progress look() {
    Progress found = Progress::kDone;
    for (uint32_t l = block_.number(); l < group_.lane_count; l += block_.size()) {
      BlockShared::LaneProgress& state = lane(l);
      while (!has_ended(l) && is_empty(part(message(l)))) ++state.message;
      state.ready = !has_ended(l) && is_ready(l);
      if (finding_.why == DeviceReport::kMismatch) return Progress::kFailed;
      if (!has_ended(l) && !state.ready) found = Progress::kBlocked;
    }
    return found;
  }

  RONDO_DEVICE bool is_ready(uint32_t l) {
    const DeviceMessage& next = message(l);
    const auto peer = static_cast<int32_t>(next.peer);
    if (next.sends) {
      const uint64_t sent = memory_.sent(next.peer);
      return sent < links_.shape.depth ||
             Base::reaches(&memory_.outbox(next.peer).freed, sent + 1 - links_.shape.depth,
                           DeviceReport::kFreeSlot, peer, 1);
    }
    InboxLine& from = memory_.inbox(next.peer);
    const uint64_t taken = memory_.taken(next.peer);
    if (taken == 0) Base::await_first(next.peer);
    if (!Base::reaches(&from.sent, taken + 1, DeviceReport::kSlot, peer, 1)) return false;
    const SlotHeader& told = memory_.header(from, taken % links_.shape.depth);
    if (told.tag == next.tag() && told.bytes == piece(l)) return true;
    (void)Base::mismatch(DeviceReport::kSlot, peer);
    return false;
  }

  /// A slot of every lane that is ready; whether there was one.
  RONDO_DEVICE bool move_what_is_ready() {
    bool moved = false;
    for (uint32_t l = 0; l < group_.lane_count; ++l) {
      if (!lane(l).ready) continue;
      moved = true;
      const DeviceMessage& next = message(l);
      const uint64_t bytes = piece(l);
      std::byte* const user = next.buffer + part(next).begin + lane(l).moved;
      std::byte* const slot =
          next.sends ? memory_.slot_to(next.peer) : memory_.slot_from(next.peer);
      const std::byte* const from = next.sends ? user : slot;
      std::byte* const to = next.sends ? slot : user;
      if (bytes > 0) {
        block_.move(DataType::kUint8, ReduceOp::kSum,
                    {.sources = &from,
                     .destinations = &to,
                     .source_count = 1,
                     .destination_count = 1,
                     .count = bytes,
                     .divisor = 1,
                     .nontemporal = 0,
                     .factors = nullptr});
      }
      block_.sync();  // all threads have read, and written what the counters then publish
      if (is_own(l)) hand_over(l, bytes);
    }
    block_.sync();  // lanes are as their owners have left them
    return moved;
  }

  RONDO_DEVICE void hand_over(uint32_t l, uint64_t bytes) {
    const DeviceMessage& done = message(l);
    if (done.sends) {
      uint64_t& sent = memory_.sent(done.peer);
      InboxLine& theirs = memory_.inbox_of(done.peer, true);
      Access::write(memory_.header(theirs, sent % links_.shape.depth),
                    SlotHeader{.tag = done.tag(), .bytes = bytes});
      Base::order();
      Access::store(&theirs.sent, ++sent);
    } else {
      const uint64_t taken = ++memory_.taken(done.peer);
      Base::order();
      Access::store(&memory_.outbox_of(done.peer).freed, taken);
    }
    BlockShared::LaneProgress& state = lane(l);
    state.moved += bytes;
    const ByteRange whole = part(done);
    if (state.moved < whole.end - whole.begin) return;
    state.moved = 0;
    ++state.message;
  }

  /// The leader's. Reports the lane of the finding.
  RONDO_DEVICE void report() {
    const bool sends = finding_.awaited == DeviceReport::kFreeSlot;
    for (uint32_t l = 0; l < group_.lane_count; ++l) {
      if (has_ended(l)) continue;
      const DeviceMessage& first = message(l);
      if (static_cast<int32_t>(first.peer) != finding_.peer || first.sends != sends) continue;
      Base::give_up([&](DeviceReport& report) {
        report.message = first;
        if (finding_.why != DeviceReport::kMismatch) return;
        InboxLine& from = memory_.inbox(first.peer);
        report.found = memory_.header(from, memory_.taken(first.peer) % links_.shape.depth).tag;
      });
      return;
    }
    Base::give_up([](DeviceReport&) {});
  }

  const DeviceGroup& group_;
  const uint32_t number_;
};

}  // namespace rondo::engine
