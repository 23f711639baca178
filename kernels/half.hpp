// fp16 and bfloat16 to and from fp32, one value at a time: the definition that every vector
// conversion equals bit for bit. Not arithmetic types: kernels widen, compute in fp32 and round
// once. Integer arithmetic only, so no rounding mode and no flush-to-zero flag of the thread can
// change a bit.
#pragma once

#include <bit>
#include <cstdint>

namespace rondo::kernels {

/// Exact. A signalling NaN becomes quiet.
constexpr float float_from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) {  // Inf, NaN
    const uint32_t quiet = magnitude > 0x7c00 ? 0x00400000 : 0;
    return std::bit_cast<float>(sign | 0x7f800000 | quiet | (magnitude & 0x3ff) << 13);
  }
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;  // 0 and denormals; a normal fp32
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

/// Rounds to nearest even; 65520 and above become Inf; a NaN stays a NaN and becomes quiet.
constexpr uint16_t half_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rounded = 0;
  if (magnitude > 0x7f800000) {
    rounded = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >=
             0x477ff000) {  // 65520: half way from the largest fp16 to the next power of two
    rounded = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14: normal
    rounded = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  } else if (magnitude >= 0x33000000) {  // 2^-25: denormal, in units of 2^-24; less rounds to zero
    const uint32_t shift = 126 - (magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t below = (1u << (shift - 1)) - 1;
    rounded = (significand + below + (significand >> shift & 1)) >> shift;
  }
  return static_cast<uint16_t>(sign | rounded);
}

/// Exact.
constexpr float float_from_bfloat16(uint16_t bfloat16) {
  return std::bit_cast<float>(static_cast<uint32_t>(bfloat16) << 16);
}

/// Rounds to nearest even, beyond the largest finite value to Inf; a NaN stays a NaN and becomes
/// quiet.
constexpr uint16_t bfloat16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace rondo::kernels
