// The words that travel with slots and signals, by which ranks that disagree find out. Packed alike
// on host and device.
#pragma once

#include <cstdint>

#include "rondo/types.hpp"

namespace rondo::board {

/// The tag of a message's slots: what a send and its recv must have alike. `count` is below 2^56.
inline constexpr int kCountBits = 56;
constexpr uint64_t message_tag(DataType type, uint64_t count) {
  return static_cast<uint64_t>(type) << kCountBits | count;
}
constexpr DataType type_of_tag(uint64_t tag) { return static_cast<DataType>(tag >> kCountBits); }
constexpr uint64_t count_of_tag(uint64_t tag) { return tag & ((uint64_t{1} << kCountBits) - 1); }

/// The value of a signal: how many the rank has raised, and in the lower bits some of its
/// operation's tag, so that a wait notices the signal of another operation. 2^44 signals last for
/// weeks of back-to-back barriers.
inline constexpr int kSignalTagBits = 20;
constexpr uint64_t signal_value(uint64_t signals, uint64_t tag) {
  return signals << kSignalTagBits | (tag & ((uint64_t{1} << kSignalTagBits) - 1));
}
constexpr uint64_t signals_of(uint64_t value) { return value >> kSignalTagBits; }

}  // namespace rondo::board
