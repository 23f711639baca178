// Addresses in the segments for one channel of a rank: its own lines, the peers' lines that it
// writes, slots and LL areas. When each may be read or written is the engine's business.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device/device_operation.hpp"
#include "comm/device/ll.hpp"
#include "transport/cuda_ipc/layout.hpp"

namespace rondo::engine {

/// Where number `number` lies among `depth` that take turns. A GPU divides 64-bit numbers by some
/// hundred instructions; usual depths are powers of two.
RONDO_DEVICE inline uint64_t place_in(uint64_t number, uint32_t depth) {
  return (depth & (depth - 1)) == 0 ? number & (depth - 1) : number % depth;
}

class ChannelMemory {
 public:
  using AbortLine = transport::cuda_ipc::AbortLine;
  using StateLine = transport::cuda_ipc::StateLine;
  using PeerLine = transport::cuda_ipc::PeerLine;
  using InboxLine = transport::cuda_ipc::InboxLine;
  using OutboxLine = transport::cuda_ipc::OutboxLine;
  using SlotHeader = transport::cuda_ipc::SlotHeader;

  RONDO_DEVICE ChannelMemory(const DeviceLinks& links, uint32_t channel)
      : links_(links), channel_(channel), layout_(links.shape) {}

  /// By rank: nonzero once the communicator has failed.
  RONDO_DEVICE uint64_t& raised(uint32_t rank) const {
    return at<AbortLine>(rank, layout_.abort()).raised;
  }

  // In this rank's segment: its state, and the lines that each peer writes.
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

  // In the peers' segments: the lines that this rank writes.
  RONDO_DEVICE PeerLine& line_of(uint32_t peer) const {
    return at<PeerLine>(peer, layout_.peer(channel_, links_.rank));
  }
  /// Its inbox for slots of this link, or for what this rank publishes.
  RONDO_DEVICE InboxLine& inbox_of(uint32_t peer, bool slot) const {
    return at<InboxLine>(
        peer, slot ? layout_.inbox(channel_, links_.rank) : layout_.notice(channel_, links_.rank));
  }
  RONDO_DEVICE OutboxLine& outbox_of(uint32_t peer) const {
    return at<OutboxLine>(peer, layout_.outbox(channel_, links_.rank));
  }

  /// Whether this rank knows what a rank, perhaps itself, has registered under that word; and how far
  /// from there it has it. Without tables peers' addresses are this rank's.
  RONDO_DEVICE bool is_mapped(uint32_t rank, transport::cuda_ipc::RegistrationWord word) const {
    return word != 0 && mapping(rank, word).word == word;
  }
  RONDO_DEVICE int64_t distance(uint32_t rank, transport::cuda_ipc::RegistrationWord word) const {
    return links_.mappings == nullptr ? 0 : mapping(rank, word).distance;
  }

  // Data: the next slots of a link, and what `writer` has published as its number `number`.
  RONDO_DEVICE std::byte* slot_from(uint32_t peer) const {
    const uint64_t index = place_in(inbox(peer).taken, links_.shape.depth);
    return links_.segments[links_.rank] + layout_.slot(channel_, peer, index);
  }
  RONDO_DEVICE std::byte* slot_to(uint32_t peer) const {
    const uint64_t index = place_in(outbox(peer).sent, links_.shape.depth);
    return links_.segments[peer] + layout_.slot(channel_, links_.rank, index);
  }
  RONDO_DEVICE std::byte* published_by(uint32_t writer, uint64_t number) const {
    const uint64_t index = place_in(number, links_.shape.publish_depth);
    return links_.segments[writer] + layout_.published_slot(channel_, index);
  }
  /// Where `writer` writes for `reader`: in operations by LL in turn, 0 or 1.
  RONDO_DEVICE LlLine* ll_area(uint32_t reader, uint32_t writer, uint32_t turn) const {
    return &at<LlLine>(reader, layout_.ll(channel_, writer, turn));
  }

  static RONDO_DEVICE SlotHeader& header(InboxLine& inbox, uint64_t index) {
    return reinterpret_cast<SlotHeader*>(&inbox + 1)[index];
  }

 private:
  template <class Line>
  RONDO_DEVICE Line& at(uint32_t rank, size_t offset) const {
    return *reinterpret_cast<Line*>(links_.segments[rank] + offset);
  }

  RONDO_DEVICE const transport::cuda_ipc::PeerMapping& mapping(
      uint32_t rank, transport::cuda_ipc::RegistrationWord word) const {
    return links_.mappings[transport::cuda_ipc::place_of(word) * links_.shape.ranks + rank];
  }

  const DeviceLinks& links_;
  const uint32_t channel_;
  const transport::cuda_ipc::SegmentLayout layout_;
};

}  // namespace rondo::engine
