// What the device engine requires of the threads that walk a channel together, and of the memory
// that it shares with other ranks. A GPU and a test implement both differently.
//
//   Block    uint32_t number(), size(): of this thread, of the block; void sync() (a barrier, after
//            which everybody sees what everybody wrote); BlockShared& shared(); uint32_t
//            raise(uint32_t& word, uint32_t bits), an atomic or within the block, what was there
//            before; void move(type, op, Move), this thread's share of it, never to shared();
//            uint64_t now_ns(); kPolls, and void rest() after as many polls in vain
//   Access   words that GPUs and hosts share: peek(const uint64_t*) reads one, load() acquires too;
//            write(T& to, T) puts data there; order(one_gpu) before store(uint64_t*, value) makes that
//            store a release of all that the block has written before its last barrier, or this
//            thread since: one for many stores. load_ll(), store_ll(): an LlLine, its halves whole
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device/device_operation.hpp"

namespace rondo::engine {

/// A thread's finding when it could not continue.
struct Finding {
  DeviceReport::Ended why;
  DeviceReport::Awaited awaited;
  int32_t peer;
};

/// The data that a block's threads share.
struct BlockShared {
  static constexpr size_t kStageBytes = 16 << 10;
  static constexpr size_t kProgramBytes = 4 << 10;  // an estimate: most of 16 ranks

  std::byte* operands[2 * (kMaxDeviceRanks + 1)];  // sources, then destinations
  double factors[kMaxDeviceRanks + 1];
  /// The threads' findings: bit 0 a thread is blocked, bit 1 a thread has failed, and the finding
  /// of the first of each. Three in turn: see agree().
  struct Turn {
    uint32_t bits;
    Finding findings[2];
  } turns[3];
  /// The progress of this channel's part of a lane's first unfinished message.
  struct LaneProgress {
    uint64_t moved;    // bytes
    uint32_t message;  // its number
    bool ready;        // a slot of it can be moved
  } lanes[DeviceGroup::kMostMessages];
  uint64_t tag, epoch;  // of this operation
  uint32_t ll_flag;     // of its lines
  /// This operation's program, if there is room, and this channel's part of it: looked at in global
  /// memory, each step of the walk would wait for the L2 several times, one after the other.
  alignas(16) std::byte program[kProgramBytes];
  alignas(16) std::byte part[sizeof(schedule::Geometry)];
  alignas(16) std::byte stage[kStageBytes];  // data from lines
};

}  // namespace rondo::engine
