// The two fp8 formats of OCP's specification (OFP8, revision 1.0) to and from fp32, one value at a
// time: the definition that every vector conversion equals bit for bit. E4M3 has no infinity and
// one NaN per sign, so that its last finite value is 448; E5M2 is laid out as IEEE's formats are.
// As in half.hpp, not arithmetic types, and integer arithmetic only.
#pragma once

#include <bit>
#include <cstdint>

namespace rondo::kernels {

/// Common to both formats: a sign, an exponent with a bias, a fraction, denormals.
template <int kFractionBits, int kBias>
struct Float8 {
  static constexpr int kDropped = 23 - kFractionBits;             // bits of an fp32's fraction
  static constexpr uint32_t kRebias = (127u - kBias) << 23;       // between the two exponents
  static constexpr uint32_t kLeastNormal = (128u - kBias) << 23;  // its fp32

  /// Exact. The fp32 of a finite pattern without its sign.
  static constexpr uint32_t widened(uint32_t magnitude) {
    if (magnitude >> kFractionBits != 0) return (magnitude << kDropped) + kRebias;
    constexpr auto kUnit = std::bit_cast<float>(kLeastNormal - (uint32_t{kFractionBits} << 23));
    return std::bit_cast<uint32_t>(static_cast<float>(magnitude) * kUnit);  // a normal fp32, or 0
  }

  /// The nearest pattern, ties to even, for a finite fp32 without its sign; beyond the largest
  /// exponent it continues counting.
  static constexpr uint32_t rounded(uint32_t magnitude) {
    constexpr uint32_t kBelowHalf = (1u << (kDropped - 1)) - 1;
    if (magnitude >= kLeastNormal) {
      return (magnitude - kRebias + kBelowHalf + (magnitude >> kDropped & 1)) >> kDropped;
    }
    const uint32_t shift = kDropped + ((kLeastNormal >> 23) - (magnitude >> 23));
    if (shift > 24) return 0;  // less than half of the least denormal
    const uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t below_half = (1u << (shift - 1)) - 1;
    return (significand + below_half + (significand >> shift & 1)) >> shift;
  }
};

/// Exact.
constexpr float float_from_e4m3(uint8_t e4m3) {
  const uint32_t sign = static_cast<uint32_t>(e4m3 & 0x80) << 24;
  const uint32_t magnitude = e4m3 & 0x7f;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000);
  return std::bit_cast<float>(sign | Float8<3, 7>::widened(magnitude));
}

/// Rounds to nearest even; infinity and values above 464 (half way from 448 to where the next value
/// would be) become NaN.
constexpr uint8_t e4m3_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > std::bit_cast<uint32_t>(464.0f)) return static_cast<uint8_t>(sign | 0x7f);
  return static_cast<uint8_t>(sign | Float8<3, 7>::rounded(magnitude));
}

/// Exact. A signalling NaN becomes quiet.
constexpr float float_from_e5m2(uint8_t e5m2) {
  const uint32_t sign = static_cast<uint32_t>(e5m2 & 0x80) << 24;
  const uint32_t magnitude = e5m2 & 0x7f;
  if (magnitude >= 0x7c) {  // Inf, NaN
    const uint32_t quiet = magnitude > 0x7c ? 0x00400000 : 0;
    return std::bit_cast<float>(sign | 0x7f800000 | quiet | (magnitude & 3) << 21);
  }
  return std::bit_cast<float>(sign | Float8<2, 15>::widened(magnitude));
}

/// Rounds to nearest even; 61440 (half way from 57344 to the next power of two) and above become
/// Inf; a NaN stays a NaN and becomes quiet.
constexpr uint8_t e5m2_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t rounded = 0;
  if (magnitude > 0x7f800000) {
    rounded = 0x7e | (magnitude >> 21 & 3);
  } else if (magnitude >= std::bit_cast<uint32_t>(61440.0f)) {
    rounded = 0x7c;
  } else {
    rounded = Float8<2, 15>::rounded(magnitude);
  }
  return static_cast<uint8_t>(sign | rounded);
}

}  // namespace rondo::kernels
