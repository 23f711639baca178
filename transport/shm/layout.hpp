// Where everything lies in the memory that the ranks of a shared-memory transport map. Places only,
// no behaviour.
//
//   part               repeated per               one of them holds
//   signals            channel, rank              SignalLine
//   link control       channel, writer, reader    ReleaseLine (128 bytes), HeaderLine[header_lines]
//   publisher control  channel, writer            ReleaseLine[ranks], HeaderLine[header_lines]
//   link data          channel, writer, reader    a ring of slots; short slots
//   publisher data     channel, writer            the same
//
// Whoever changes a place, or which place comes next, raises kVersion (comm/setup/facts.cpp): ranks
// of two versions must not meet.
//
// Every line has one writer. Zero everywhere is the initial state: there is nothing to initialise,
// and what is not used is never touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/link.hpp"
#include "transport/shm/factory.hpp"

namespace rondo::transport::shm {

constexpr size_t kLine = 64;
constexpr size_t kLinePair = 128;  // prefetchers fetch pairs: other writers stay this far away
constexpr size_t kInlineBytes = 40;

/// Up to so many bytes travel in a short slot. With as few of them as there are slots, the writer
/// would look for credit at every message, and each look costs both ends a cache miss.
constexpr size_t kShortBytes = 256;
constexpr size_t kShortStride = kShortBytes + kLine;

/// So many messages may be on their way that need no full slot. More than slots: they cost 384
/// bytes each.
constexpr uint32_t kLeastHeaderLines = 32;
constexpr uint32_t header_lines(uint32_t depth) {
  return depth > kLeastHeaderLines ? depth : kLeastHeaderLines;
}

enum class MessageKind : uint32_t { kNone = 0, kInline = 1, kSlot = 2, kReference = 3, kShort = 4 };

// HeaderLine, one per message, written by the writer:
//   offset  bytes  field
//   0       8      sequence   the message's place in the FIFO, from 1; written last; never reset
//   8       8      tag        the engine's
//   16      4      bytes      of payload; 0 for a reference
//   20      4      kind
//   24      40     payload    kInline: the payload; kReference: ReferenceBody; kSlot: unused
struct alignas(kLine) HeaderLine {
  std::atomic<uint64_t> sequence;
  uint64_t tag;
  uint32_t bytes;
  MessageKind kind;
  std::byte payload[kInlineBytes];
};
static_assert(sizeof(HeaderLine) == kLine && offsetof(HeaderLine, tag) == 8);
static_assert(offsetof(HeaderLine, bytes) == 16 && offsetof(HeaderLine, kind) == 20);
static_assert(offsetof(HeaderLine, payload) == 24);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct ReferenceBody {
  Reference reference;
  uint64_t bytes;
};
static_assert(sizeof(ReferenceBody) == 24 && sizeof(ReferenceBody) <= kInlineBytes);

// ReleaseLine, written by one reader: how many messages of this FIFO it has released, ever.
struct alignas(kLine) ReleaseLine {
  std::atomic<uint64_t> released;
};
static_assert(sizeof(ReleaseLine) == kLine);

// SignalLine, written by one rank: its signal of one channel.
struct alignas(kLinePair) SignalLine {
  std::atomic<uint64_t> value;
};
static_assert(sizeof(SignalLine) == kLinePair);

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// From slot to slot: an odd number of lines, and 9 or more past a multiple of 4 KiB for slots of
/// whole pages, so that the same place in different slots falls into different sets of the
/// first-level cache.
constexpr size_t stride(size_t slot_bytes) { return round_up(slot_bytes, 512) + 9 * kLine; }
static_assert(stride(64 << 10) / kLine % 2 == 1 && stride(100) / kLine % 2 == 1);

/// A FIFO's slots follow each other in a ring, each as long as its message. Where the largest slot
/// would no longer fit, the next one is at the front. The ring needs room for `depth` slots, and for
/// one more that is left empty at the end. `least` is larger than a core's caches: a line that the
/// reader still has there takes three times as long to write. But the first use of a page costs more
/// than many later ones, so a ring begins no larger than needed, and doubles after kRoundsToGrow
/// rounds. Both ends count. Ranks that take turns on a core pass 0: there slots are whole ones.
constexpr size_t ring_bytes(uint32_t depth, size_t slot_bytes, size_t least) {
  if (depth == 0) return 0;
  const size_t needed = (size_t{depth} + 1) * stride(slot_bytes);
  return needed > least ? needed : round_up(least, kLine);
}
constexpr uint32_t kRoundsToGrow = 8;
constexpr size_t next_slot(size_t slot, size_t bytes, size_t slot_bytes, size_t ring_bytes) {
  slot += stride(bytes);
  return slot + stride(slot_bytes) <= ring_bytes ? slot : 0;
}

/// Short slots, one per header line, lie after the ring. Where slots are no larger there are none.
constexpr size_t short_slots_bytes(uint32_t depth, size_t slot_bytes) {
  return slot_bytes > kShortBytes ? header_lines(depth) * kShortStride : 0;
}

/// Offsets from the base of the memory.
class FifoLayout {
 public:
  explicit constexpr FifoLayout(const FifoSizes& shape)
      : ranks_(static_cast<size_t>(shape.ranks)),
        channels_(static_cast<size_t>(shape.channels)),
        link_control_bytes_(kLinePair + round_up(header_lines(shape.depth) * kLine, kLinePair)),
        publisher_control_bytes_(round_up(ranks_ * kLine, kLinePair) +
                                 round_up(header_lines(shape.publish_depth) * kLine, kLinePair)),
        link_ring_bytes_(ring_bytes(shape.depth, shape.slot_bytes, shape.ring_bytes)),
        publisher_ring_bytes_(
            ring_bytes(shape.publish_depth, shape.publish_slot_bytes, shape.ring_bytes)),
        link_data_bytes_(link_ring_bytes_ + short_slots_bytes(shape.depth, shape.slot_bytes)),
        publisher_data_bytes_(publisher_ring_bytes_ +
                              short_slots_bytes(shape.publish_depth, shape.publish_slot_bytes)),
        links_(channels_ * ranks_ * sizeof(SignalLine)),
        publishers_(links_ + channels_ * ranks_ * ranks_ * link_control_bytes_),
        link_data_(
            round_up(publishers_ + channels_ * ranks_ * publisher_control_bytes_, size_t{4096})),
        publisher_data_(link_data_ + channels_ * ranks_ * ranks_ * link_data_bytes_),
        bytes_(publisher_data_ + channels_ * ranks_ * publisher_data_bytes_) {}

  constexpr size_t signal(size_t channel, size_t rank) const {
    return (channel * ranks_ + rank) * sizeof(SignalLine);
  }
  constexpr size_t link_release(size_t channel, size_t writer, size_t reader) const {
    return links_ + link(channel, writer, reader) * link_control_bytes_;
  }
  constexpr size_t link_headers(size_t channel, size_t writer, size_t reader) const {
    return link_release(channel, writer, reader) + kLinePair;
  }
  constexpr size_t link_data(size_t channel, size_t writer, size_t reader) const {
    return link_data_ + link(channel, writer, reader) * link_data_bytes_;
  }
  constexpr size_t publisher_releases(size_t channel, size_t writer) const {
    return publishers_ + (channel * ranks_ + writer) * publisher_control_bytes_;
  }
  constexpr size_t publisher_headers(size_t channel, size_t writer) const {
    return publisher_releases(channel, writer) + round_up(ranks_ * kLine, kLinePair);
  }
  constexpr size_t publisher_data(size_t channel, size_t writer) const {
    return publisher_data_ + (channel * ranks_ + writer) * publisher_data_bytes_;
  }
  constexpr size_t link_ring_bytes() const { return link_ring_bytes_; }
  constexpr size_t publisher_ring_bytes() const { return publisher_ring_bytes_; }
  constexpr size_t bytes() const { return bytes_; }

 private:
  constexpr size_t link(size_t channel, size_t writer, size_t reader) const {
    return (channel * ranks_ + writer) * ranks_ + reader;
  }

  size_t ranks_, channels_;
  size_t link_control_bytes_, publisher_control_bytes_;
  size_t link_ring_bytes_, publisher_ring_bytes_, link_data_bytes_, publisher_data_bytes_;
  size_t links_, publishers_, link_data_, publisher_data_, bytes_;
};

}  // namespace rondo::transport::shm
