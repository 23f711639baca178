// Where everything lies in the memory that a rank on a GPU gives its peers: one segment per rank,
// in the memory of its GPU. Places only, no behaviour.
//
// Whoever waits reads its own memory: a peer writes there what it has to tell, so that a wait costs
// nothing between the GPUs. Hence slots of a link lie with the reader; only what is published for
// many lies with the writer, once, and readers fetch it.
//
//   part              repeated per         one of them holds
//   abort             -                    AbortLine: raised by a rank that gives up
//   state             channel              StateLine: the owner's own, kept from kernel to kernel
//   from a peer       channel, peer        PeerLine: the peer's signal, and its buffers
//   inbox             channel, writer      InboxLine, SlotHeader[depth]: what the writer has sent
//   notices           channel, writer      InboxLine, SlotHeader[publish_depth]: what it has published
//   outbox            channel, reader      OutboxLine: what the reader has freed, of either kind
//   slots             channel, writer      depth slots, written by the writer
//   published slots   channel              publish_depth slots, written by the owner
//   LL areas          channel, writer, 2   ll_bytes of data and their flags, written by the writer
//
// Every field but that first one has one writer, and fields of different writers share no line.
// Zero everywhere is the initial state. Counters never start again, so that a graph's replay goes
// on where the last ended.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rondo::transport::cuda_ipc {

constexpr size_t kLine = 128;  // of a GPU's L2

/// Equal on every rank.
struct SegmentSizes {
  uint32_t ranks = 0;
  uint32_t channels = 1;
  uint32_t message_channels = 0;  // of these, the last ones: for messages alone
  uint32_t depth = 8;             // slots of a link
  size_t slot_bytes = 0;          // of one
  size_t slot_gap = 0;            // before each, for what a wire sends along; a multiple of kLine
  uint32_t publish_depth = 0;     // published slots; 0: no publishers
  size_t publish_slot_bytes = 0;  // of one
  size_t ll_bytes = 0;  // of data in an LL area (comm/device/ll.hpp); 0: nothing goes by LL
};

struct alignas(kLine) AbortLine {
  uint64_t raised;  // never lowered
};

struct alignas(kLine) StateLine {
  uint64_t epoch;      // operations begun on this channel
  uint64_t history;    // a hash of all of them, in order
  uint64_t signals;    // raised
  uint64_t published;  // slots for all
  uint64_t by_ll;      // operations by LL that had elements on this channel
  uint64_t questions;  // operations whose ranks asked whether peers can access the buffers
};

/// A registration that a buffer lies in: its place in the tables of PeerMapping in the lowest 8 bits,
/// above it a number that no other one of the communicator has. 0: none.
using RegistrationWord = uint32_t;
constexpr uint32_t kMostRegistrations = 256;  // at a time
constexpr uint32_t place_of(RegistrationWord word) { return word % kMostRegistrations; }

/// Where this rank's GPU has what a rank has registered: `distance` bytes from where that rank has
/// it. Each rank has a table of them, [place][rank], in memory of its GPU.
struct PeerMapping {
  RegistrationWord word;  // 0: nothing
  int64_t distance;
};

/// Of an operation's buffers.
struct RegisteredIn {
  RegistrationWord in = 0, out = 0;
};

// PeerLine, written by the peer:
//   offset  bytes  field
//   0       8      signal   how often it has signalled, and a tag (comm/device/device_engine.hpp)
//   8       8      epoch    of the operation whose buffers follow; written last
//   16      8      in       its buffers, where the peer has them
//   24      8      out
//   32      8      factor   of a scaled sum's input
//   40      8      tag      of the operation: a rank in another one must not touch the buffers
//   48      16     answers  to StateLine::questions, number n at n % 2: 2 n, and 1 more if peers cannot
//                           access its buffers
//   64      8      registrations  of in and of out (PeerMapping); 0: peers reach every buffer, or need not
//   72      8      place    in the registration, of an operation by copies: must be every rank's
struct alignas(kLine) PeerLine {
  uint64_t signal;
  uint64_t epoch;
  const std::byte* in;
  std::byte* out;
  double factor;
  uint64_t tag;
  uint64_t answers[2];
  RegisteredIn registrations;
  uint64_t place;
};
static_assert(sizeof(PeerLine) == kLine && offsetof(PeerLine, answers) == 48);
static_assert(offsetof(PeerLine, epoch) == 8 && offsetof(PeerLine, in) == 16);
static_assert(offsetof(PeerLine, registrations) == 64 && offsetof(PeerLine, place) == 72);

/// A line of the writer's, and in another one what the reader alone knows.
struct alignas(kLine) InboxLine {
  uint64_t sent;  // slots, ever; written after slot and header
  alignas(kLine) uint64_t taken;
};

/// Two lines of the reader's, one for each kind of slot, and what the writer alone knows.
struct alignas(kLine) OutboxLine {
  uint64_t freed;            // slots of the link, ever
  uint64_t freed_published;  // published slots, ever
  alignas(kLine) uint64_t sent;
};

/// What a slot holds.
struct SlotHeader {
  uint64_t tag;
  uint64_t bytes;
};

/// Offsets from the beginning of a segment. Computed on the device too, where it is needed.
class SegmentLayout {
 public:
  explicit constexpr SegmentLayout(const SegmentSizes& shape)
      : shape_(shape),
        state_(sizeof(AbortLine)),
        peers_(state_ + shape.channels * sizeof(StateLine)),
        inboxes_(peers_ + pairs() * sizeof(PeerLine)),
        notices_(inboxes_ + pairs() * inbox_bytes(shape.depth)),
        outboxes_(notices_ + pairs() * inbox_bytes(shape.publish_depth)),
        slots_(outboxes_ + pairs() * sizeof(OutboxLine)),
        published_(slots_ + pairs() * shape.depth * slot_stride()),
        ll_(published_ +
            size_t{shape.channels} * shape.publish_depth * stride(shape.publish_slot_bytes)),
        bytes_(ll_ + 2 * pairs() * ll_stride()) {}

  constexpr size_t abort() const { return 0; }
  constexpr size_t state(size_t channel) const { return state_ + channel * sizeof(StateLine); }
  constexpr size_t peer(size_t channel, size_t from) const {
    return peers_ + pair(channel, from) * sizeof(PeerLine);
  }
  /// The InboxLine; its headers follow it.
  constexpr size_t inbox(size_t channel, size_t writer) const {
    return inboxes_ + pair(channel, writer) * inbox_bytes(shape_.depth);
  }
  constexpr size_t notice(size_t channel, size_t writer) const {
    return notices_ + pair(channel, writer) * inbox_bytes(shape_.publish_depth);
  }
  constexpr size_t outbox(size_t channel, size_t reader) const {
    return outboxes_ + pair(channel, reader) * sizeof(OutboxLine);
  }
  constexpr size_t slot(size_t channel, size_t writer, uint64_t index) const {
    return slots_ + shape_.slot_gap +
           (pair(channel, writer) * shape_.depth + index) * slot_stride();
  }
  /// From one slot of a link to the next.
  constexpr size_t slot_stride() const { return shape_.slot_gap + stride(shape_.slot_bytes); }
  /// Where all slots of links lie.
  constexpr size_t slots_begin() const { return slots_; }
  constexpr size_t slots_bytes() const { return published_ - slots_; }
  constexpr size_t published_slot(size_t channel, uint64_t index) const {
    return published_ +
           (channel * shape_.publish_depth + index) * stride(shape_.publish_slot_bytes);
  }
  /// The two areas of a pair take turns: `turn` is 0 or 1.
  constexpr size_t ll(size_t channel, size_t writer, size_t turn) const {
    return ll_ + (2 * pair(channel, writer) + turn) * ll_stride();
  }
  /// Bytes of an LL area: twice its data.
  constexpr size_t ll_stride() const { return lines(2 * shape_.ll_bytes); }
  constexpr size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  static constexpr size_t stride(size_t slot_bytes) { return lines(slot_bytes); }
  static constexpr size_t inbox_bytes(size_t depth) {
    return sizeof(InboxLine) + lines(depth * sizeof(SlotHeader));
  }
  constexpr size_t pairs() const { return size_t{shape_.channels} * shape_.ranks; }
  constexpr size_t pair(size_t channel, size_t rank) const { return channel * shape_.ranks + rank; }

  SegmentSizes shape_;
  size_t state_, peers_, inboxes_, notices_, outboxes_, slots_, published_, ll_, bytes_;
};

}  // namespace rondo::transport::cuda_ipc
