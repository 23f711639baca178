// Division by a number that is the same for a whole move. A GPU divides by a loop of its own: ten
// instructions for an ordinary fp32, a call of some sixty where the exponents are near an end.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/device_code.hpp"
#include "kernels/element.hpp"

namespace rondo::kernels::cuda {

/// divide(value, divisor) of element.hpp, in every bit, for `divisor` > 1. Constructed once per move,
/// by divisions. Here for types whose averages are rare: divides each time.
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
    const double exact = static_cast<float>(divisor);
    // Less than the reciprocal even if that has few bits, so that `low` is not 0, by which infinity
    // would become a NaN.
    const uint64_t below = std::bit_cast<uint64_t>(1 / exact) - 1;
    high_ = std::bit_cast<double>(below & ~uint64_t{0xffffff});
    low_ = (1 - high_ * exact) / exact;  // the product and the difference are exact
  }
  constexpr float operator()(float value) const {
    const double wide = value;
    return static_cast<float>(wide * high_ + wide * low_);
  }

 private:
  double high_, low_;
};

}  // namespace rondo::kernels::cuda
