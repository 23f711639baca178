// When an element counts as wrong: one rule for comparisons on the host and on a device
// (../backends/mismatch_kernel.cu).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rondo::bench {

/// The number of wrong elements, and the lowest index of one.
struct Mismatch {
  uint64_t wrong = 0;
  uint64_t first = UINT64_MAX;  // none
};

/// Compares bits, not values: expected values are exact (pattern.hpp), so only they are right. A
/// NaN is wrong, and so is -0 where 0 is expected.
template <std::unsigned_integral Bits>
constexpr bool is_wrong(Bits found, Bits expected) {
  return found != expected;
}

/// For host memory. Bits: of the type's size.
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
