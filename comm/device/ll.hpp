// LL (NCCL's name: low latency): data that carries its own flag, so that a reader needs no counter
// and a writer no fence. A line is 16 bytes, two halves of 4 bytes of data and a 4-byte flag. Only
// a half has to arrive whole, which every GPU, NVLink and host guarantees for 8 aligned bytes. Half
// of the bytes are flags, which costs small messages nothing.
//
// This file: what a line is, and a thread's share of writing and reading many. When an area may be
// written again is the engine's business (ll_walk.hpp).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/move.hpp"

namespace rondo::engine {

struct alignas(16) LlLine {
  uint64_t halves[2];  // data below, flag above
};
inline constexpr size_t kLlData = 8;  // bytes of data in a line

/// The flag of all lines of one operation. Never 0, which is memory that was never written.
/// `number`: of the operation among those by LL; `tag`: the hash of all operations so far, on which
/// ranks must agree. 16 bits of it are sent: one disagreement in 65536 goes unnoticed until the
/// next operation, whose tag differs.
inline constexpr uint32_t kLlNumbers = 1u << 15;  // distinct numbers; older lines must be cleared
constexpr uint32_t ll_flag(uint64_t number, uint64_t tag) {
  return 1u << 31 | static_cast<uint32_t>(number % kLlNumbers) << 16 |
         static_cast<uint32_t>(tag & 0xffff);
}

enum class Arrival { kMissing, kHere, kForeign };

/// kForeign: the line of an operation with this number, but not the same one.
constexpr Arrival arrival(const LlLine& line, uint32_t flag) {
  const auto first = static_cast<uint32_t>(line.halves[0] >> 32);
  const auto second = static_cast<uint32_t>(line.halves[1] >> 32);
  if (first == flag && second == flag) return Arrival::kHere;
  const auto foreign = [flag](uint32_t found) {
    return found != flag && found >> 16 == flag >> 16;
  };
  return foreign(first) || foreign(second) ? Arrival::kForeign : Arrival::kMissing;
}
constexpr uint64_t data_of(const LlLine& line) {
  return line.halves[0] << 32 >> 32 | line.halves[1] << 32;
}
constexpr LlLine ll_line(uint64_t data, uint32_t flag) {
  const uint64_t above = static_cast<uint64_t>(flag) << 32;
  return {{(data & 0xffffffffu) | above, data >> 32 | above}};
}

constexpr size_t ll_lines(size_t bytes) { return (bytes + kLlData - 1) / kLlData; }

/// The data of line `index` of `bytes` bytes that may lie anywhere; past their end: zero.
RONDO_DEVICE inline uint64_t ll_data(const std::byte* from, size_t bytes, size_t index) {
  const size_t at = index * kLlData;
  if (bytes - at >= kLlData && reinterpret_cast<uintptr_t>(from) % kLlData == 0) {
    return kernels::cuda::load_aligned<uint64_t>(from + at);
  }
  uint64_t data = 0;
  for (size_t b = 0; b < kLlData && at + b < bytes; ++b) {
    data |= static_cast<uint64_t>(from[at + b]) << (8 * b);
  }
  return data;
}

/// Writes this thread's share of `bytes` as lines to every target(peer), peer < peers, that is not
/// null. Access: device_block.hpp.
template <class Access, class Target>
RONDO_DEVICE void ll_write(const std::byte* from, size_t bytes, uint32_t flag, uint32_t peers,
                           const kernels::cuda::Share& share, const Target& target) {
  for (size_t i = share.thread; i < ll_lines(bytes); i += share.threads) {
    const LlLine line = ll_line(ll_data(from, bytes, i), flag);
    for (uint32_t peer = 0; peer < peers; ++peer) {
      if (LlLine* const to = target(peer)) Access::store_ll(to + i, line);
    }
  }
}

/// What ll_read() has found: of which area, unless all is here.
struct LlFound {
  Arrival arrival;
  uint32_t area;
};

/// Reads this thread's share of the lines of several areas, `lines` of each: calls body(area,
/// index, data) for each line that has arrived. from(area): null if there is nothing to read. Polls
/// `polls` times for a missing line; returns what is missing or foreign. May be called again from
/// the beginning.
template <class Access, class From, class Body>
RONDO_DEVICE LlFound ll_read(uint32_t areas, uint32_t lines, uint32_t flag, uint32_t polls,
                             const kernels::cuda::Share& share, const From& from,
                             const Body& body) {
  constexpr uint32_t kUnroll = 4;  // loads that are on their way together
  const auto threads = static_cast<uint32_t>(share.threads);
  for (auto begin = static_cast<uint32_t>(share.thread); begin < areas * lines;
       begin += kUnroll * threads) {
    const LlLine* missing[kUnroll];
    uint32_t area[kUnroll], index[kUnroll];
    for (uint32_t u = 0; u < kUnroll; ++u) {
      const uint32_t j = begin + u * threads;
      area[u] = j / lines;
      index[u] = j % lines;
      missing[u] = j < areas * lines ? from(area[u]) : nullptr;
      if (missing[u] != nullptr) missing[u] += index[u];
    }
    for (uint32_t poll = 0;; ++poll) {
      LlLine line[kUnroll];
      for (uint32_t u = 0; u < kUnroll; ++u) {
        if (missing[u] != nullptr) line[u] = Access::load_ll(missing[u]);
      }
      LlFound found = {Arrival::kHere, 0};
      for (uint32_t u = 0; u < kUnroll; ++u) {
        if (missing[u] == nullptr) continue;
        const Arrival now = arrival(line[u], flag);
        if (now == Arrival::kHere) {
          missing[u] = nullptr;
          body(area[u], index[u], data_of(line[u]));
        } else if (found.arrival != Arrival::kForeign) {
          found = {now, area[u]};
        }
      }
      if (found.arrival == Arrival::kHere) break;
      if (found.arrival == Arrival::kForeign || poll + 1 >= polls) return found;
    }
  }
  return {Arrival::kHere, 0};
}

}  // namespace rondo::engine
