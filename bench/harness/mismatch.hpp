// When an element is wrong: one rule for the host's comparisons and for those of a device
// (../backends/mismatch_kernel.cu).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rondo::bench {

/// How many elements are wrong, and the least index of one.
struct Mismatch {
  uint64_t wrong = 0;
  uint64_t first = UINT64_MAX;  // none
};

/// Bits, not values: what is expected is exact (pattern.hpp), so nothing else is right. A NaN is
/// wrong, and so is -0 where 0 is expected.
template <std::unsigned_integral Bits>
constexpr bool is_wrong(Bits found, Bits expected) {
  return found != expected;
}

/// In the host's memory. Bits: of the type's size.
template <std::unsigned_integral Bits>
Mismatch mismatch_of(const void* found, const void* expected, size_t count) {
  const auto load = [](const void* from, size_t i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const std::byte*>(from) + i * sizeof(Bits), sizeof(Bits));
    return bits;
  };
  Mismatch mismatch;
  for (size_t i = count; i-- > 0;) {
    if (!is_wrong(load(found, i), load(expected, i))) continue;
    ++mismatch.wrong;
    mismatch.first = i;
  }
  return mismatch;
}

/// The same for elements of 1, 2, 4 or 8 bytes.
inline Mismatch mismatch_of(const void* found, const void* expected, size_t count,
                            size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return mismatch_of<uint8_t>(found, expected, count);
    case 2:
      return mismatch_of<uint16_t>(found, expected, count);
    case 4:
      return mismatch_of<uint32_t>(found, expected, count);
    default:
      return mismatch_of<uint64_t>(found, expected, count);
  }
}

}  // namespace rondo::bench
