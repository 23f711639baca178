// FreeList: which ranges of [0, bytes) are free. Offsets only; it never touches the memory. First
// fit, neighbours merge.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <unordered_map>

namespace rondo::transport {

/// Thread-compatible.
class FreeList {
 public:
  explicit FreeList(size_t bytes) { free_[0] = bytes; }

  /// The offset of a free range of `bytes` > 0 at a multiple of `alignment` (a power of two), or
  /// nothing.
  std::optional<size_t> take(size_t bytes, size_t alignment) {
    for (auto block = free_.begin(); block != free_.end(); ++block) {
      const auto [start, length] = *block;
      const size_t offset = (start + alignment - 1) & ~(alignment - 1);
      const size_t skipped = offset - start;
      if (length < skipped || length - skipped < bytes) continue;
      free_.erase(block);
      if (skipped > 0) free_[start] = skipped;
      if (const size_t rest = length - skipped - bytes; rest > 0) free_[offset + bytes] = rest;
      taken_[offset] = bytes;
      return offset;
    }
    return std::nullopt;
  }

  /// First half of giving back: the bytes of the range taken at `offset`, which then belongs to
  /// nobody; nothing if it is not taken. The owner cleans the range (without holding a lock) and
  /// calls insert().
  std::optional<size_t> remove(size_t offset) {
    const auto taken = taken_.find(offset);
    if (taken == taken_.end()) return std::nullopt;
    const size_t bytes = taken->second;
    taken_.erase(taken);
    return bytes;
  }

  /// Makes a removed range free again.
  void insert(size_t offset, size_t bytes) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_.emplace_hint(next, offset, bytes);
  }

  size_t free_blocks() const { return free_.size(); }

 private:
  std::map<size_t, size_t> free_;             // offset -> bytes
  std::unordered_map<size_t, size_t> taken_;  // offset -> bytes
};

}  // namespace rondo::transport
