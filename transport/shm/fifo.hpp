// The two ends of a FIFO in mapped memory. One writer, one reader or several; no locks, no
// read-modify-write, no fences.
//
// Writer and readers meet in two places only: the sequence in each message's header line (writer to
// readers), and each reader's release line (reader to writer). The writer reads release lines only
// when the credit it knows of is used up. Messages that need no slot may be further ahead of their
// readers than there are slots: short ones stream, as long as there are header lines.
#pragma once

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
  std::byte* data = nullptr;
  size_t capacity = 0;
  uint32_t depth = 0;  // slots; message m has header m % header_lines(depth), and slot m % depth
};

/// The next of a ring's `size` places.
constexpr uint32_t after(uint32_t index, uint32_t size) {
  return index + 1 == size ? 0 : index + 1;
}

/// Used by one thread at a time. On lines of its own: the neighbour's end may be another thread's.
class alignas(kLine) FifoWriter final : public Sender {
 public:
  FifoWriter() = default;
  /// `releases`: `readers` lines, of which number `skip` has no reader (-1: all have).
  FifoWriter(const Fifo& fifo, const ReleaseLine* releases, int readers, int skip)
      : fifo_(fifo),
        stride_(stride(fifo.capacity)),
        lines_(header_lines(fifo.depth)),
        releases_(releases),
        readers_(readers),
        skip_(skip) {}

  std::byte* try_acquire(size_t bytes) override {
    RONDO_CHECK(bytes <= fifo_.capacity, "%zu > %zu", bytes, fifo_.capacity);
    const bool needs_slot = bytes > kInlineBytes;
    if (!has_credit(needs_slot ? fifo_.depth : lines_)) return nullptr;
    acquired_ = bytes;
    return needs_slot ? fifo_.data + slot_ * stride_ : fifo_.headers[line_].payload;
  }

  bool try_publish(size_t bytes, uint64_t tag) override {
    RONDO_CHECK(bytes <= acquired_, "%zu > %zu", bytes, acquired_);
    HeaderLine& header = fifo_.headers[line_];
    header.bytes = static_cast<uint32_t>(bytes);
    header.kind = acquired_ <= kInlineBytes ? MessageKind::kInline : MessageKind::kSlot;
    show(header, tag);
    return true;
  }

  bool takes_references() const override { return true; }
  bool try_publish_reference(const Reference& reference, size_t bytes, uint64_t tag) override {
    if (!has_credit(lines_)) return false;
    HeaderLine& header = fifo_.headers[line_];
    header.bytes = 0;
    header.kind = MessageKind::kReference;
    const ReferenceBody body{.reference = reference, .bytes = bytes};
    std::memcpy(header.payload, &body, sizeof(body));
    show(header, tag);
    return true;
  }

  bool drained() override {
    if (released_ != published_) refresh();
    return released_ == published_;
  }
  size_t capacity() const override { return fifo_.capacity; }
  uint32_t depth() const override { return fifo_.depth; }

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
      if (released == released_ || published_ - released > lines_) return;
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
    line_ = after(line_, lines_);
    slot_ = after(slot_, fifo_.depth);
  }

  Fifo fifo_;
  size_t stride_ = 0;
  uint32_t lines_ = 0;
  const ReleaseLine* releases_ = nullptr;
  int readers_ = 0;
  int skip_ = -1;
  uint32_t line_ = 0, slot_ = 0;  // of the next message
  size_t acquired_ = 0;           // `bytes` of the last try_acquire
  uint64_t published_ = 0;        // messages, ever
  uint64_t released_ = 0;         // of those, released by all readers as far as we know
};

/// Used by one thread at a time. On lines of its own, as FifoWriter.
class alignas(kLine) FifoReader final : public Receiver {
 public:
  FifoReader() = default;
  FifoReader(const Fifo& fifo, ReleaseLine* release, const References* references, int writer)
      : fifo_(fifo),
        stride_(stride(fifo.capacity)),
        lines_(header_lines(fifo.depth)),
        release_(release),
        references_(references),
        writer_(writer) {}

  bool try_peek(Delivery* delivery) override {
    const HeaderLine& header = fifo_.headers[line_];
    // A short payload travels together with the flag that announces it, not after it.
    for (size_t line = 0; line < ahead_; line += kLine) {
      __builtin_prefetch(fifo_.data + slot_ * stride_ + line);
    }
    // Acquire: pairs with the release store in FifoWriter::show.
    if (header.sequence.load(std::memory_order_acquire) != released_ + 1) return false;
    const size_t bytes = header.bytes;
    ahead_ = header.kind == MessageKind::kSlot && bytes <= kAheadBytes ? bytes : 0;
    switch (header.kind) {
      case MessageKind::kInline:
        *delivery = {bytes <= kInlineBytes ? header.payload : nullptr, bytes, header.tag};
        return true;
      case MessageKind::kSlot:
        *delivery = {bytes <= fifo_.capacity ? fifo_.data + slot_ * stride_ : nullptr, bytes,
                     header.tag};
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
    line_ = after(line_, lines_);
    slot_ = after(slot_, fifo_.depth);
  }

 private:
  Fifo fifo_;
  size_t stride_ = 0;
  uint32_t lines_ = 0;
  ReleaseLine* release_ = nullptr;
  const References* references_ = nullptr;
  int writer_ = 0;
  uint32_t line_ = 0, slot_ = 0;  // of the oldest message not released
  uint64_t released_ = 0;         // messages, ever
  size_t ahead_ = 0;  // bytes of the next slot to ask for early: as many as the last one held
};

}  // namespace rondo::transport::shm
