// References: pointers made to mean something in another process, and back. Believes nothing that a
// peer wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "transport/link.hpp"
#include "transport/memory/arena.hpp"
#include "transport/memory/registered.hpp"

namespace rondo::transport::shm {

/// Const after construction.
class References {
 public:
  References(int rank, std::vector<ArenaView> arenas, bool same_process)
      : rank_(static_cast<size_t>(rank)), arenas_(std::move(arenas)), same_process_(same_process) {}

  Reference refer(const void* pointer, size_t bytes) const {
    if (pointer == nullptr) return {};
    if (same_process_) {
      return {
          .kind = Reference::kAddress, .arena = 0, .offset = reinterpret_cast<uintptr_t>(pointer)};
    }
    if (arenas_.empty()) return {};
    const auto address = reinterpret_cast<uintptr_t>(arena_address(pointer, bytes));
    const ArenaView& own = arenas_[rank_];
    const auto base = reinterpret_cast<uintptr_t>(own.base);
    if (own.base == nullptr || address < base || !fits(own, address - base, bytes)) return {};
    return {.kind = Reference::kArena, .arena = own.id, .offset = address - base};
  }

  std::byte* resolve(int peer, const Reference& reference, uint64_t bytes) const {
    if (reference.kind == Reference::kAddress && same_process_) {
      return reinterpret_cast<std::byte*>(reference.offset);
    }
    if (reference.kind != Reference::kArena || arenas_.empty()) return nullptr;
    const ArenaView& arena = arenas_[static_cast<size_t>(peer)];
    if (arena.base == nullptr || arena.id != reference.arena) return nullptr;
    return fits(arena, reference.offset, bytes) ? arena.base + reference.offset : nullptr;
  }

 private:
  static bool fits(const ArenaView& arena, uint64_t offset, uint64_t bytes) {
    return offset < arena.bytes && bytes <= arena.bytes - offset;
  }

  size_t rank_;
  std::vector<ArenaView> arenas_;
  bool same_process_;
};

}  // namespace rondo::transport::shm
