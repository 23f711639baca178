// Registered memory: the caller's own pages, replaced by pages of the arena at the same addresses
// (rondo::register_memory, rondo/memory.hpp). Peers see it as what it now is, a part of the arena.
#pragma once

#include <atomic>
#include <cstddef>

namespace rondo::transport {

/// How many registrations there are, for arena_address() alone.
inline std::atomic<size_t> registrations = 0;

const std::byte* look_up_registered(const void* pointer, size_t bytes);

/// Where [pointer, pointer + bytes) lies in the arena, if it lies in one registration; otherwise
/// `pointer` itself. Thread-safe.
inline const std::byte* arena_address(const void* pointer, size_t bytes) {
  // Relaxed: a thread that passes registered memory to a call knows of its registration already.
  if (registrations.load(std::memory_order_relaxed) == 0) {
    return static_cast<const std::byte*>(pointer);
  }
  return look_up_registered(pointer, bytes);
}

}  // namespace rondo::transport
