// Segment: nameless shared memory, mapped once per process. It does not say what lies in the
// memory.
//
// A memfd has no name in /dev/shm that could be left behind, and is not bound by that mount's size.
// Its size is sealed: a peer that cuts it short under our feet would be a SIGBUS in our process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::transport {

enum class Pages { kDefault, kHuge };  // kHuge: ask for huge pages where the system allows it

/// A shared handle on one mapping: copies are cheap, the last one unmaps. All Segments of one memfd
/// in one process share one mapping (so that ranks that are threads meet at one address, which also
/// lets thread sanitizers see them). Thread-compatible; create() and map() may be called from any
/// thread.
class Segment {
 public:
  Segment() = default;  // none: base() is null

  /// A new zeroed segment of `bytes` (> 0), sparse: only pages that are touched take memory. `name`
  /// shows up in /proc/PID/maps. Aligned to 2 MiB. Errors: kResourceExhausted, kSystem.
  static Result<Segment> create(const char* name, size_t bytes, Pages pages = Pages::kDefault);

  /// The segment behind a descriptor that a peer sent. Refuses (kInvalidArgument) one that is not
  /// exactly `expected_bytes` long or not sealed. Consumes `fd`: a mapping needs none.
  static Result<Segment> map(UniqueFd fd, size_t expected_bytes, Pages pages = Pages::kDefault);

  /// For code that holds a lock of its own over create() or map() and over fork(): call this before
  /// registering handlers with pthread_atfork, so that the locks are taken in the same order by
  /// both.
  static void register_fork_handlers();

  /// What has been written to a segment, in private memory.
  struct Copy {
    std::byte* base = nullptr;  // null if memory was exhausted
    size_t bytes = 0;           // from the segment's beginning; the rest is zero
  };
  /// Before fork(): a copy for the child. REQUIRES: this process created the segment.
  Copy copy() const;
  /// After fork(), in the parent.
  static void discard(const Copy& copy);
  /// In the child: `copy` takes the place of this process's mapping, so that neither process sees the
  /// other's writes. Without a copy whoever touches the memory gets SIGSEGV. Whoever maps the
  /// segment again gets another mapping.
  void become(const Copy& copy);

  std::byte* base() const { return mapping_ ? mapping_->base : nullptr; }
  size_t bytes() const { return mapping_ ? mapping_->bytes : 0; }
  /// For sending to peers; still the segment's. -1 where this process mapped the segment instead of
  /// creating it.
  int fd() const { return mapping_ ? mapping_->fd.get() : -1; }
  /// Tells segments of one host apart (the inode number).
  uint64_t id() const { return mapping_ ? mapping_->inode : 0; }

 private:
  struct Mapping {
    std::byte* base = nullptr;
    size_t bytes = 0;
    uint64_t inode = 0;
    UniqueFd fd;
    ~Mapping();
  };
  static Result<Segment> find_or_map(UniqueFd fd, size_t bytes, Pages pages, bool keep_fd);

  std::shared_ptr<Mapping> mapping_;
};

}  // namespace rondo::transport
