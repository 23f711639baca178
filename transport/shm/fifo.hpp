// The two ends of a FIFO in mapped memory. One writer, one reader or several; no locks, no
// read-modify-write, no fences.
//
// Writer and readers meet in two places only: the sequence in each message's header line (writer to
// readers), and each reader's release line (reader to writer). The writer reads release lines only
// when the credit it knows of is used up. Messages that need no slot may be further ahead of their
// readers than there are slots: short ones stream, as long as there are header lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "rondo/status.hpp"
#include "transport/link.hpp"
#include "transport/shm/layout.hpp"
#include "transport/shm/references.hpp"

namespace rondo::transport::shm {

/// Of larger payloads the first lines hide the way of the others.
inline constexpr size_t kAheadBytes = 1024;

/// Where a FIFO lies and how large it is.
struct Fifo {
  HeaderLine* headers = nullptr;
  std::byte* data = nullptr;  // the ring of slots, and the short slots after it
  size_t ring_bytes = 0;
  bool whole_slots = false;  // a slot is as long as the capacity, whatever its message
  size_t capacity = 0;
  uint32_t depth = 0;  // slots
};

/// Where one end's next message lies: message m has header and short slot m % header_lines(depth).
/// A slot begins where the one before it ended, which is for both ends to follow; whatever lengths a
/// peer claims, a whole slot fits between it and the ring's end.
class FifoPlace {
 public:
  FifoPlace() = default;
  explicit FifoPlace(const Fifo& fifo)
      : fifo_(fifo),
        lines_(header_lines(fifo.depth)),
        end_(ring_bytes(fifo.depth, fifo.capacity, 0)),
        least_(fifo.whole_slots ? fifo.capacity : 0),
        short_bytes_(fifo.capacity > kShortBytes ? kShortBytes : kInlineBytes),
        short_slots_(fifo.capacity > kShortBytes ? fifo.data + fifo.ring_bytes : nullptr) {}

  const Fifo& fifo() const { return fifo_; }
  MessageKind kind_for(size_t bytes) const {
    if (bytes <= kInlineBytes) return MessageKind::kInline;
    return bytes <= short_bytes_ ? MessageKind::kShort : MessageKind::kSlot;
  }
  /// Messages on their way, this one included, when it may be written.
  uint32_t most_on_the_way(MessageKind kind) const {
    return kind == MessageKind::kSlot ? fifo_.depth : lines_;
  }
  uint32_t lines() const { return lines_; }
  HeaderLine& header() const { return fifo_.headers[line_]; }
  std::byte* payload(MessageKind kind) const {
    if (kind == MessageKind::kInline) return header().payload;
    return kind == MessageKind::kShort ? short_slots_ + line_ * kShortStride : fifo_.data + slot_;
  }
  /// The same, or null where no writer of ours puts so many bytes.
  const std::byte* checked_payload(MessageKind kind, size_t bytes) const {
    const size_t most = kind == MessageKind::kInline  ? kInlineBytes
                        : kind == MessageKind::kShort ? short_bytes_
                                                      : fifo_.capacity;
    const bool absent = kind == MessageKind::kShort && short_slots_ == nullptr;
    return bytes <= most && !absent ? payload(kind) : nullptr;
  }
  /// Past a message that checked_payload() allows, or that its writer acquired.
  void pass(MessageKind kind, size_t bytes) {
    line_ = line_ + 1 == lines_ ? 0 : line_ + 1;
    if (kind == MessageKind::kSlot) {
      slot_ = next_slot(slot_, std::max(bytes, least_), fifo_.capacity, end_);
      if (slot_ == 0) begin_round();
    }
  }

 private:
  void begin_round() {
    if (end_ == fifo_.ring_bytes || ++rounds_ < kRoundsToGrow) return;
    rounds_ = 0;
    end_ = std::min(2 * end_, fifo_.ring_bytes);
  }

  Fifo fifo_;
  uint32_t lines_ = 0;
  uint32_t line_ = 0;
  uint32_t rounds_ = 0;  // that the ring has been gone round since it last grew
  size_t slot_ = 0;      // bytes from the ring's front
  size_t end_ = 0;       // of as much of the ring as is in use
  size_t least_ = 0;     // bytes that a slot has at least
  size_t short_bytes_ = 0;
  std::byte* short_slots_ = nullptr;  // null: there are none
};

/// Used by one thread at a time. On lines of its own: the neighbour's end may be another thread's.
class alignas(kLine) FifoWriter final : public Sender {
 public:
  FifoWriter() = default;
  /// `releases`: `readers` lines, of which number `skip` has no reader (-1: all have).
  FifoWriter(const Fifo& fifo, const ReleaseLine* releases, int readers, int skip)
      : place_(fifo), releases_(releases), readers_(readers), skip_(skip) {}

  std::byte* try_acquire(size_t bytes) override {
    RONDO_CHECK(bytes <= capacity(), "%zu > %zu", bytes, capacity());
    const MessageKind kind = place_.kind_for(bytes);
    if (!has_credit(place_.most_on_the_way(kind))) return nullptr;
    acquired_ = bytes;
    kind_ = kind;
    return place_.payload(kind);
  }

  bool try_publish(size_t bytes, uint64_t tag) override {
    RONDO_CHECK(bytes <= acquired_, "%zu > %zu", bytes, acquired_);
    HeaderLine& header = place_.header();
    header.bytes = static_cast<uint32_t>(bytes);
    header.kind = kind_;
    show(header, tag);
    place_.pass(kind_, bytes);
    return true;
  }

  bool takes_references() const override { return true; }
  bool try_publish_reference(const Reference& reference, size_t bytes, uint64_t tag) override {
    if (!has_credit(place_.lines())) return false;
    HeaderLine& header = place_.header();
    header.bytes = 0;
    header.kind = MessageKind::kReference;
    const ReferenceBody body{.reference = reference, .bytes = bytes};
    std::memcpy(header.payload, &body, sizeof(body));
    show(header, tag);
    place_.pass(MessageKind::kReference, 0);
    return true;
  }

  bool drained() override {
    if (released_ != published_) refresh();
    return released_ == published_;
  }
  size_t capacity() const override { return place_.fifo().capacity; }
  uint32_t depth() const override { return place_.fifo().depth; }

 private:
  /// Whether the message that came `messages` ago has been released by all.
  bool has_credit(uint32_t messages) {
    if (published_ - released_ < messages) return true;
    refresh();
    return published_ - released_ < messages;
  }

  /// Learns how far the slowest reader is.
  void refresh() {
    uint64_t slowest = published_;
    for (int reader = 0; reader < readers_; ++reader) {
      if (reader == skip_) continue;
      // Acquire: pairs with the release store in FifoReader::release, so that the reader's last
      // look at a slot comes before our next write to it (or, after drained(), to the memory that
      // was referred to).
      const uint64_t released = releases_[reader].released.load(std::memory_order_acquire);
      // A count that no reader can have reached is no credit: the FIFO stays full and the engine's
      // deadline reports it.
      if (released == released_ || published_ - released > place_.lines()) return;
      if (published_ - released > published_ - slowest) slowest = released;
    }
    released_ = slowest;
  }

  void show(HeaderLine& header, uint64_t tag) {
    header.tag = tag;
    // Release: pairs with the acquire load in FifoReader::try_peek, so that a reader that sees the
    // sequence sees header and slot. Stores past the cache (non-temporal) are not ordered by it: a
    // kernel that uses them ends with a store fence of its own.
    header.sequence.store(++published_, std::memory_order_release);
  }

  FifoPlace place_;  // of the next message
  const ReleaseLine* releases_ = nullptr;
  int readers_ = 0;
  int skip_ = -1;
  MessageKind kind_ = MessageKind::kNone;  // of the last try_acquire
  size_t acquired_ = 0;                    // its `bytes`
  uint64_t published_ = 0;                 // messages, ever
  uint64_t released_ = 0;                  // of those, released by all readers as far as we know
};

/// Used by one thread at a time. On lines of its own, as FifoWriter.
class alignas(kLine) FifoReader final : public Receiver {
 public:
  FifoReader() = default;
  FifoReader(const Fifo& fifo, ReleaseLine* release, const References* references, int writer)
      : place_(fifo), release_(release), references_(references), writer_(writer) {}

  bool try_peek(Delivery* delivery) override {
    const HeaderLine& header = place_.header();
    // A short payload travels together with the flag that announces it, not after it.
    for (size_t line = 0; line < ahead_; line += kLine) {
      __builtin_prefetch(place_.payload(ahead_kind_) + line);
    }
    // Acquire: pairs with the release store in FifoWriter::show.
    if (header.sequence.load(std::memory_order_acquire) != released_ + 1) return false;
    const size_t bytes = held_bytes_ = header.bytes;
    const MessageKind kind = held_ = header.kind;  // once: the writer is not trusted
    ahead_ = 0;
    switch (kind) {
      case MessageKind::kInline:
        *delivery = {place_.checked_payload(kind, bytes), bytes, header.tag};
        return true;
      case MessageKind::kShort:
      case MessageKind::kSlot:
        *delivery = {place_.checked_payload(kind, bytes), bytes, header.tag};
        if (delivery->data != nullptr && bytes <= kAheadBytes) {
          ahead_ = bytes;
          ahead_kind_ = kind;
        }
        return true;
      case MessageKind::kReference: {
        ReferenceBody body;
        std::memcpy(&body, header.payload, sizeof(body));
        *delivery = {references_->resolve(writer_, body.reference, body.bytes), body.bytes,
                     header.tag};
        return true;
      }
      case MessageKind::kNone:
        break;
    }
    *delivery = {nullptr, bytes, header.tag};  // no kind of ours: garbage
    return true;
  }

  void release() override {
    // Release: pairs with the acquire load in FifoWriter::refresh, so that the slot is reused only
    // after we have read it.
    release_->released.store(++released_, std::memory_order_release);
    place_.pass(held_, held_bytes_);
  }

 private:
  FifoPlace place_;  // of the oldest message not released
  ReleaseLine* release_ = nullptr;
  const References* references_ = nullptr;
  int writer_ = 0;
  uint64_t released_ = 0;                  // messages, ever
  MessageKind held_ = MessageKind::kNone;  // the oldest message, once seen
  size_t held_bytes_ = 0;
  // What to ask for early of the next message: as much as the last one held.
  size_t ahead_ = 0;
  MessageKind ahead_kind_ = MessageKind::kNone;
};

}  // namespace rondo::transport::shm
