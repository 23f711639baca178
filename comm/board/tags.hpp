// The words that travel with slots and signals, by which ranks that disagree find out. Packed alike
// on host and device.
#pragma once

#include <cstdint>

#include "rondo/types.hpp"

namespace rondo::board {

/// The word of a message's slots, the same in all of them. From its lowest bit:
///
///   bits  what
///   43    count, of elements
///   16    tag; all ones for kAnyTag, which only the board shows
///   5     data type
inline constexpr int kCountBits = 43, kTagBits = 16;
inline constexpr uint64_t kMostCount = (uint64_t{1} << kCountBits) - 1;
inline constexpr uint64_t kTagMask = (uint64_t{1} << kTagBits) - 1;
static_assert(kMaxTag < static_cast<int>(kTagMask) && kDataTypes < 1 << (64 - 43 - 16));

constexpr uint64_t message_word(DataType type, uint64_t count, int tag = 0) {
  return static_cast<uint64_t>(type) << (kCountBits + kTagBits) |
         (static_cast<uint64_t>(tag) & kTagMask) << kCountBits | count;
}
constexpr DataType type_of_word(uint64_t word) {
  return static_cast<DataType>(word >> (kCountBits + kTagBits));
}
constexpr int tag_of_word(uint64_t word) {
  const uint64_t tag = word >> kCountBits & kTagMask;
  return tag == kTagMask ? kAnyTag : static_cast<int>(tag);
}
constexpr uint64_t count_of_word(uint64_t word) { return word & kMostCount; }

/// The value of a signal: how many the rank has raised, and in the lower bits some of its
/// operation's tag, so that a wait notices the signal of another operation. 2^44 signals last for
/// weeks of back-to-back barriers.
inline constexpr int kSignalTagBits = 20;
constexpr uint64_t signal_value(uint64_t signals, uint64_t tag) {
  return signals << kSignalTagBits | (tag & ((uint64_t{1} << kSignalTagBits) - 1));
}
constexpr uint64_t signals_of(uint64_t value) { return value >> kSignalTagBits; }

}  // namespace rondo::board
