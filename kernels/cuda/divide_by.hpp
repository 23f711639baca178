// Division by a number that is the same for a whole move. A GPU divides by code of its own: ten
// instructions for an ordinary fp32, a call of some sixty where the exponents are near an end, and
// one of a hundred for 64-bit integers.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "kernels/device_code.hpp"
#include "kernels/element.hpp"

namespace rondo::kernels::cuda {

/// divide(value, divisor) of element.hpp, in every bit, for `divisor` > 1. Constructed once per move,
/// by divisions. fp64 is divided each time; bools are not divided.
template <class T>
class DivideBy {
 public:
  constexpr explicit DivideBy(uint32_t divisor) : divisor_(divisor) {}
  constexpr T operator()(T value) const { return divide(value, divisor_); }

 private:
  uint32_t divisor_;
};

/// Multiplies by the reciprocal, in fp64 and without a branch, so that infinities, zeros and
/// denormals are no special cases. The reciprocal is the sum of two fp64, `high` of which has 29
/// bits: an fp32 times it is exact, and the sum of both products has a relative error of 2^-53, from
/// its own rounding. That is small enough because the divisor, an integer rounded to fp32, is a power
/// of two times an integer below 2^24: a quotient that is not half way between two fp32 is further
/// than 2^-49 of itself from there. One that is half way, a denormal, has no error: it has 25 bits.
template <>
class DivideBy<float> {
 public:
  constexpr explicit DivideBy(uint32_t divisor) {
    if (divisor < 2) return;  // prepared, but not used
    const double exact = static_cast<float>(divisor), reciprocal = 1 / exact;
    // Less than the reciprocal even if that has few bits, so that `low` is not 0, by which infinity
    // would become a NaN.
    const uint64_t below = std::bit_cast<uint64_t>(reciprocal) - 1;
    high_ = std::bit_cast<double>(below & ~uint64_t{0xffffff});
    low_ = (1 - high_ * exact) * reciprocal;  // the first product and the difference are exact
  }
  constexpr float operator()(float value) const {
    const double wide = value;
    return static_cast<float>(wide * high_ + wide * low_);
  }

 private:
  double high_ = 0, low_ = 0;
};

/// The upper half of a product.
constexpr uint32_t multiply_high(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
constexpr uint64_t multiply_high(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
}

/// Multiplies a magnitude below 2^N by 2^(N + s) / divisor, rounded up, and shifts; s is log2(divisor),
/// rounded up. The factor has a bit more than a word, 2^N + `factor_`, so the 2^N is added, halved
/// first as the sum could overflow (Granlund and Montgomery, Division by invariant integers using
/// multiplication, 1994, figure 4.1).
template <std::integral T>
requires(!std::is_same_v<T, bool>) class DivideBy<T> {
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

 public:
  constexpr explicit DivideBy(uint32_t divisor)
      : shift_(divisor > 1 ? static_cast<uint32_t>(std::bit_width(divisor - 1)) - 1 : 0) {
    if (divisor < 2) return;
    // 2^N (2^s - divisor) / divisor + 1, by digits of 32 bits.
    const uint64_t rest = ((uint64_t{2} << shift_) - divisor) << 32;
    factor_ = static_cast<Word>(rest / divisor);
    if constexpr (sizeof(Word) == 8) factor_ = factor_ << 32 | (rest % divisor << 32) / divisor;
    ++factor_;
  }
  constexpr T operator()(T value) const {
    const auto word = static_cast<Word>(value);
    const bool negative = std::is_signed_v<T> && value < 0;
    const Word magnitude = negative ? 0 - word : word;
    const Word high = multiply_high(magnitude, factor_);
    const Word quotient = (high + ((magnitude - high) >> 1)) >> shift_;
    return static_cast<T>(negative ? 0 - quotient : quotient);
  }

 private:
  uint32_t shift_;  // s - 1
  Word factor_ = 0;
};

template <>
class DivideBy<Int128> {
 public:
  constexpr explicit DivideBy(uint32_t divisor) : divisor_(divisor), divided_(divisor) {}
  constexpr Int128 operator()(Int128 value) const {
    return divide_digits(value, divisor_, divided_);
  }

 private:
  uint32_t divisor_;
  DivideBy<uint64_t> divided_;
};

}  // namespace rondo::kernels::cuda
