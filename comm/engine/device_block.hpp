// What the device engine asks of the threads that walk a channel together, and of the memory that
// it shares with other ranks: the two things that are one on a GPU and another in a test.
//
//   Block    uint32_t number(), size(): of this thread, of the block; void sync() (a barrier, after
//            which everybody sees what everybody wrote); BlockShared& shared(); uint32_t
//            raise(uint32_t& word, uint32_t bits), an atomic or within the block, what was there
//            before; void move(type, op, Move), this thread's share of it; uint64_t now_ns();
//            kPolls, and void rest() after as many polls in vain
//   Access   words that GPUs and hosts share: peek(const uint64_t*) reads one, load() acquires too;
//            write(T& to, T) puts data there; order() before store(uint64_t*, value) makes that
//            store a release of all that the block has written before its last barrier, or this
//            thread since: one for many stores. load_ll(), store_ll(): an LlLine, its halves whole
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/engine/device_operation.hpp"

namespace rondo::engine {

/// What a thread saw when it could not go on.
struct Finding {
  DeviceReport::Ended why;
  DeviceReport::Awaited awaited;
  int32_t peer;
};

/// What a block's threads share.
struct BlockShared {
  static constexpr size_t kStageBytes = 16 << 10;

  std::byte* operands[2 * (kMaxDeviceRanks + 1)];  // sources, then destinations
  double factors[kMaxDeviceRanks + 1];
  /// What threads have found: bit 0 somebody is blocked, bit 1 somebody has failed, and the finding
  /// of the first to say so. Three in turn: see agree().
  struct Turn {
    uint32_t bits;
    Finding findings[2];
  } turns[3];
  /// How far this channel's part of the first unfinished message of a lane is.
  struct Lane {
    uint64_t moved;    // bytes
    uint32_t message;  // its number
    bool ready;        // a slot of it can be moved
  } lanes[DeviceGroup::kMostMessages];
  uint64_t tag, epoch;                       // of this operation
  uint32_t ll_flag;                          // of its lines
  alignas(16) std::byte stage[kStageBytes];  // data that lines have brought, or that go into them
};

}  // namespace rondo::engine
