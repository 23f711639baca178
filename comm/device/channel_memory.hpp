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

  /// Whether a proxy (wire_proxy.hpp) carries what passes between this rank and that one.
  RONDO_DEVICE bool is_far(uint32_t rank) const { return (links_.far >> rank & 1) != 0; }

  // In this rank's segment: its state, and the counters of slots that it has taken from a peer and
  // sent to it. They are looked at for every slot, so a far peer's are there, too.
  RONDO_DEVICE StateLine& state() const {
    return at<StateLine>(links_.rank, layout_.state(channel_));
  }
  RONDO_DEVICE uint64_t& taken(uint32_t peer) const {
    return at<InboxLine>(links_.rank, layout_.inbox(channel_, peer)).taken;
  }
  RONDO_DEVICE uint64_t& sent(uint32_t peer) const {
    return at<OutboxLine>(links_.rank, layout_.outbox(channel_, peer)).sent;
  }

  // What each peer writes for this rank: in this rank's segment, a far one's where the proxy puts it.
  RONDO_DEVICE PeerLine& own_line(uint32_t peer) const {
    return at<PeerLine>(links_.rank, layout_.peer(channel_, peer));
  }
  RONDO_DEVICE InboxLine& inbox(uint32_t writer) const {
    return *reinterpret_cast<InboxLine*>(from(writer) + layout_.inbox(channel_, writer));
  }
  RONDO_DEVICE InboxLine& notice(uint32_t writer) const {
    return at<InboxLine>(links_.rank, layout_.notice(channel_, writer));
  }
  RONDO_DEVICE OutboxLine& outbox(uint32_t reader) const {
    return *reinterpret_cast<OutboxLine*>(from(reader) + layout_.outbox(channel_, reader));
  }

  // In the peers' segments, or for a far one where the proxy finds it: the lines that this rank writes.
  RONDO_DEVICE PeerLine& line_of(uint32_t peer) const {  // REQUIRES: !is_far(peer)
    return at<PeerLine>(peer, layout_.peer(channel_, links_.rank));
  }
  /// Its inbox for slots of this link, or for what this rank publishes.
  RONDO_DEVICE InboxLine& inbox_of(uint32_t peer, bool slot) const {
    const Outward to = outward(peer);
    return *reinterpret_cast<InboxLine*>(
        to.base + (slot ? layout_.inbox(channel_, to.place) : layout_.notice(channel_, to.place)));
  }
  RONDO_DEVICE OutboxLine& outbox_of(uint32_t peer) const {
    const Outward to = outward(peer);
    return *reinterpret_cast<OutboxLine*>(to.base + layout_.outbox(channel_, to.place));
  }

  /// Whether this rank knows what a rank, perhaps itself, has registered under that word; and how far
  /// from there it has it. Without tables peers' addresses are this rank's.
  RONDO_DEVICE bool is_mapped(uint32_t rank, transport::cuda_ipc::RegistrationWord word) const {
    return word != 0 && mapping(rank, word).word == word;
  }
  RONDO_DEVICE int64_t distance(uint32_t rank, transport::cuda_ipc::RegistrationWord word) const {
    return links_.mappings == nullptr ? 0 : mapping(rank, word).distance;
  }

  /// Tells the proxy, before the first slot of a far peer has come, that one is awaited: it connects
  /// to those peers only whose slots someone sends or awaits.
  RONDO_DEVICE uint64_t& awaits_first(uint32_t peer) const {
    return reinterpret_cast<InboxLine*>(links_.outbound + layout_.inbox(channel_, peer))->taken;
  }

  // Data: the next slots of a link, and what `writer` has published as its number `number`.
  RONDO_DEVICE std::byte* slot_from(uint32_t peer) const {
    const uint64_t index = place_in(taken(peer), links_.shape.depth);
    std::byte* const segment = is_far(peer) ? links_.inbound_slots : links_.segments[links_.rank];
    return segment + layout_.slot(channel_, peer, index);
  }
  RONDO_DEVICE std::byte* slot_to(uint32_t peer) const {
    const uint64_t index = place_in(sent(peer), links_.shape.depth);
    return is_far(peer) ? links_.outbound_slots + layout_.slot(channel_, peer, index)
                        : links_.segments[peer] + layout_.slot(channel_, links_.rank, index);
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
  /// Where lines lie that `peer` writes for this rank.
  RONDO_DEVICE std::byte* from(uint32_t peer) const {
    return is_far(peer) ? links_.inbound : links_.segments[links_.rank];
  }
  /// Where those lie that this rank writes for `peer`, as those of which writer, or reader.
  struct Outward {
    std::byte* base;
    uint32_t place;
  };
  RONDO_DEVICE Outward outward(uint32_t peer) const {
    return is_far(peer) ? Outward{links_.outbound, peer}
                        : Outward{links_.segments[peer], links_.rank};
  }
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
