// Numbers that look random and are a pure function of a key: the same on every machine and every
// standard library. Refuses to be a source of entropy, and has no state to lose.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rondo::trainer {

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that leaves
/// no visible order.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// What keys the random numbers of one pass; of one sample in it, of which neither the rank nor the
/// position in the batch is a part; and of that sample in one layer.
constexpr uint64_t pass_key(uint64_t seed, uint64_t step) { return mix(mix(seed) ^ step); }
constexpr uint64_t sample_key(uint64_t pass, uint64_t sample_id) { return mix(pass ^ sample_id); }
constexpr uint64_t layer_key(uint64_t sample, size_t layer) { return mix(sample ^ layer); }

/// Uniform in [-1, 1), from the upper 53 bits.
constexpr double symmetric_unit(uint64_t x) {
  return static_cast<double>(mix(x) >> 11) * 0x1.0p-52 - 1.0;
}

}  // namespace rondo::trainer
