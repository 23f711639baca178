// The transport contract: one-way FIFOs of slots between two ranks. Knows bytes and peers; never
// dtypes or algorithms.
//
// Links never wait: every call returns at once, and the engine does the waiting. A transport is a
// set of links, one per (channel, peer, direction), plus what else it can do. A channel, that is
// its links, its signal and its progress(), is used by one thread at a time.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "rondo/status.hpp"

namespace rondo::transport {

/// A place in memory that the other side can reach: `offset` into the arena of the sending process,
/// or, within one process, an address (see shm/references.hpp). kNone: such memory is not shared.
/// kProcess: an address in the sending process that is not mapped here, but that the kernel copies
/// from and to (Transport::copy_from, copy_to).
struct Reference {
  enum Kind : uint32_t { kNone = 0, kArena = 1, kAddress = 2, kProcess = 3 };
  uint32_t kind = kNone;
  uint32_t arena = 0;
  uint64_t offset = 0;
};

/// The writing end of a FIFO. Use: try_acquire, fill, try_publish. A Sender with several readers
/// (Transport::publisher) frees a slot when the slowest has released it.
class Sender {
 public:
  virtual ~Sender() = default;

  /// Where to write the next slot's `bytes` (at most capacity()), or null: not now, call again.
  /// A FIFO is full until the message depth() before the next one has been released; some may be
  /// further ahead: those that take no slot, because they travel beside the flag, and on a wire at
  /// most depth() of any kind. Aligned to 64 bytes, or to 8 where a small payload travels beside the
  /// flag. Calling again without publishing gives
  /// the same slot; the last `bytes` count.
  virtual std::byte* try_acquire(size_t bytes) = 0;

  /// Hands the acquired slot to the reader(s), with a word of the engine's; `bytes` is at most what
  /// was acquired. False: not now; the slot stays acquired and filled, and only this call is
  /// repeated. After true the slot belongs to the transport.
  virtual bool try_publish(size_t bytes, uint64_t tag) = 0;

  /// Whether try_publish_reference() may be called; the same as long as the link lives. Then slots are
  /// memory that both ends have mapped.
  virtual bool takes_references() const { return false; }
  /// Instead of acquire + publish: the reader gets a view of the caller's own memory, which must
  /// stay as it is until drained(). False: not now. REQUIRES: takes_references(), and
  /// Transport::refer gave this reference.
  virtual bool try_publish_reference(const Reference& /*reference*/, size_t /*bytes*/,
                                     uint64_t /*tag*/) {
    RONDO_CHECK(false, "this link takes no references");
    return false;
  }

  /// Whether every published slot has been released by every reader. On a wire, which takes no
  /// references, the last releases may stay unknown until the reader has more to tell.
  virtual bool drained() = 0;
  /// Whether every published slot arrives even if this rank never calls progress() again.
  virtual bool flushed() { return true; }

  /// How many of the published slots, from the first on, may be filled again, without acquiring them.
  /// Of links whose slots lie in the caller's memory (ucx/factory.hpp), as they follow each other there.
  virtual uint64_t reusable() {
    RONDO_CHECK(false, "this link's slots are its own");
    return 0;
  }

  virtual size_t capacity() const = 0;  // bytes of a slot
  virtual uint32_t depth() const = 0;   // slots
};

/// What try_peek shows: valid until release().
struct Delivery {
  const std::byte* data;  // null: what the peer wrote makes no sense (too long, outside its arena);
                          // report it and stop
  size_t bytes;
  uint64_t tag;
};

/// The reading end of a FIFO. Use: try_peek, read, release.
class Receiver {
 public:
  virtual ~Receiver() = default;

  /// Shows the oldest slot not yet released; false: nothing has arrived. Once true, it stays true
  /// until release().
  virtual bool try_peek(Delivery* delivery) = 0;
  /// The same of the slot that comes `ahead` slots later. Of the same links.
  virtual bool try_peek_ahead(uint64_t /*ahead*/, Delivery* /*delivery*/) {
    RONDO_CHECK(false, "this link's slots are its own");
    return false;
  }
  /// Frees the peeked slot for its writer. REQUIRES: try_peek returned true since the last release.
  virtual void release() = 0;
  /// Whether the writer finds as many free slots as the releases so far entitle it to, even if this
  /// rank never calls progress() again.
  virtual bool flushed() { return true; }
  /// When a slot is already on its way and cannot be seen before some time: that time
  /// (CLOCK_MONOTONIC nanoseconds), so that a waiter can sleep until then. 0: unknown.
  virtual int64_t ready_at_ns() const { return 0; }
};

/// What a transport can do beyond links, and what it needs.
struct Capabilities {
  bool publish = false;  // one writer, many readers: publisher() and subscription()
  /// resolve() works for every peer: peers read and write each other's buffers in place.
  bool references = false;
  bool signals = false;       // signal() and seen()
  bool process_copy = false;  // copy_from() and copy_to()
  bool delays = false;        // also bytes that are accessed in place take time: carry()
  /// Some links move only inside progress() (a wire). The waiting loops then call it again and
  /// again, and sleep for moments only, because nothing wakes a sleeper when a slot arrives.
  bool needs_progress = false;
};

/// All links of one communicator. Created on every rank with the same shape. Thread rule: each
/// channel is used by one thread at a time; everything else is const after creation.
///
/// Links are the part that every transport has; for the rest, the defaults below are those of a
/// transport without that capability.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Capabilities capabilities() const = 0;

  /// Link of `channel` from this rank to `peer`, and from `peer` to this rank. REQUIRES: peer !=
  /// own rank. Owned by the transport.
  virtual Sender& sender(int channel, int peer) = 0;
  virtual Receiver& receiver(int channel, int peer) = 0;

  /// Moves what is on its way on the links of `channel`, in both directions: published slots leave,
  /// arrived ones become visible, releases reach their writers. Cheap, never blocks. REQUIRES:
  /// nothing; without capabilities().needs_progress it does nothing.
  /// Error: a link of this channel has failed, by a message that names the peer. The error stays:
  /// every later call returns it, and the links of that peer move no more.
  virtual Status progress(int /*channel*/) { return {}; }

  /// This rank's multi-reader FIFO of `channel`, and this rank's end of `peer`'s. REQUIRES:
  /// capabilities().publish.
  virtual Sender& publisher(int /*channel*/) { lacks("publishers"); }
  virtual Receiver& subscription(int /*channel*/, int /*peer*/) { lacks("publishers"); }

  /// Raises this rank's counter of `channel` to `value` after everything this thread has written
  /// before (release); and reads a peer's (acquire). Counters start at 0 and never fall. A signal
  /// cannot be refused, so a network has none. REQUIRES: capabilities().signals.
  virtual void signal(int /*channel*/, uint64_t /*value*/) { lacks("signals"); }
  virtual uint64_t seen(int /*channel*/, int /*peer*/) { lacks("signals"); }
  /// If a signal of `peer` is on its way: when seen() will return it, in CLOCK_MONOTONIC
  /// nanoseconds. Otherwise 0.
  virtual int64_t signal_ready_at_ns(int /*channel*/, int /*peer*/) const { return 0; }

  /// For a transport with capabilities().delays: charges bytes that this rank has accessed in a peer's
  /// buffer. They travel on the wire of `sender`: the peer if this rank read them, this rank itself
  /// if it wrote them. Returns when bytes that were read arrive here (CLOCK_MONOTONIC nanoseconds), or
  /// 0 for bytes that were written. The channel's next signal() becomes visible to peers after them.
  virtual int64_t carry(int /*channel*/, int /*sender*/, size_t /*bytes*/) { return 0; }

  /// A reference to [pointer, pointer + bytes) for the links that take references, or kind kNone;
  /// and where `peer`'s reference, with `bytes` from there on, lies in this process, or null when
  /// it does not fit its arena.
  virtual Reference refer(const void* /*pointer*/, size_t /*bytes*/) { return {}; }
  virtual std::byte* resolve(int /*peer*/, const Reference& /*reference*/, size_t /*bytes*/) {
    return nullptr;
  }

  /// Copies between this process and any memory of `peer`'s, at `address` there; returns when that
  /// is done. 0, or errno: EFAULT where the peer has no such memory, ESRCH where its process has
  /// ended; part may have been copied then. REQUIRES: capabilities().process_copy.
  virtual int copy_from(int /*peer*/, uint64_t /*address*/, std::byte* /*to*/, size_t /*bytes*/) {
    return ENOTSUP;
  }
  virtual int copy_to(int /*peer*/, uint64_t /*address*/, const std::byte* /*from*/,
                      size_t /*bytes*/) {
    return ENOTSUP;
  }

 private:
  [[noreturn]] static void lacks(const char* what) {
    RONDO_CHECK(false, "this transport has no %s", what);
    std::abort();
  }
};

}  // namespace rondo::transport
