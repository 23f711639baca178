// Messages for tests of the device engine: what every rank sends to every other and to itself.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "comm/device/device_group.hpp"

namespace rondo::engine::test {

/// Slots of 64 bytes, one channel for collectives and two for messages.
inline transport::cuda_ipc::SegmentSizes message_shape(uint32_t ranks) {
  return {.ranks = ranks,
          .channels = 3,
          .message_channels = 2,
          .depth = 2,
          .slot_bytes = 64,
          .publish_depth = 2,
          .publish_slot_bytes = 64};
}

/// One rank's. Two messages in each direction of each pair, the second of which is nothing, or
/// longer than all slots of both channels.
class Letters {
 public:
  Letters(uint32_t rank, uint32_t ranks) : rank_(rank), ranks_(ranks) {
    for (uint32_t peer = 0; peer < ranks; ++peer) {
      for (const size_t count : counts(rank, peer)) {
        for (size_t i = 0; i < count; ++i) out_.push_back(value(rank, peer, i));
      }
      for (const size_t count : counts(peer, rank)) {
        for (size_t i = 0; i < count; ++i) wanted_.push_back(value(peer, rank, i));
      }
    }
    in_.resize(wanted_.size());
  }
  /// Where they are: of what is sent, and of what is received.
  const std::vector<uint16_t>& out() const { return out_; }
  std::vector<uint16_t>& in() { return in_; }
  bool all_have_come() const { return in_ == wanted_; }

  DeviceGroup group(uint64_t limit_ns) { return group(limit_ns, out_.data(), in_.data()); }
  /// The same with copies of out() and in() that are somewhere else.
  DeviceGroup group(uint64_t limit_ns, uint16_t* out, uint16_t* in) const {
    std::vector<DeviceMessage> messages;
    for (const bool sends : {true, false}) {
      uint16_t* at = sends ? out : in;
      for (uint32_t peer = 0; peer < ranks_; ++peer) {
        for (const size_t count : sends ? counts(rank_, peer) : counts(peer, rank_)) {
          messages.push_back({.buffer = reinterpret_cast<std::byte*>(at),
                              .count = count,
                              .peer = peer,
                              .type = static_cast<uint64_t>(DataType::kFloat16),
                              .sends = sends});
          at += count;
        }
      }
    }
    DeviceGroup group;
    group.limit_ns = limit_ns;
    put_messages(group, std::move(messages));
    return group;
  }

 private:
  static std::vector<size_t> counts(uint32_t from, uint32_t to) {
    return {37 + from * 3 + to, (from + to) % 2 == 0 ? 0U : 20'011U};
  }
  static uint16_t value(uint32_t from, uint32_t to, size_t i) {
    return static_cast<uint16_t>(from * 1000 + to * 100 + i * 7);
  }
  uint32_t rank_, ranks_;
  std::vector<uint16_t> out_, in_, wanted_;
};

}  // namespace rondo::engine::test
