// Division by numbers that are known when a kernel is launched.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/device_code.hpp"

namespace rondo::trainer::cuda {

/// Divides n < 2^31 by a multiplication and a shift, where a GPU would take some twenty instructions:
/// n / by = n m / 2^s, rounded down, with m = 2^s / by, rounded up, and s = 31 + log2(by), rounded up
/// (Granlund and Montgomery, Division by invariant integers using multiplication, 1994).
class Divisor {
 public:
  static constexpr uint32_t kMost = (uint32_t{1} << 31) - 1;  // of what is divided
  /// by < 2^31; 0 divides as 1, for shapes of nothing.
  constexpr explicit Divisor(size_t by)
      : by_(by == 0 ? 1 : static_cast<uint32_t>(by)),
        shift_(31 + static_cast<uint32_t>(std::bit_width(by_ - 1))),
        factor_(static_cast<uint32_t>(((uint64_t{1} << shift_) + by_ - 1) / by_)) {}

  struct Division {
    uint32_t quotient, remainder;
  };
  RONDO_DEVICE Division divide(uint32_t n) const {
    const auto quotient = static_cast<uint32_t>(uint64_t{n} * factor_ >> shift_);
    return {quotient, n - quotient * by_};
  }

 private:
  uint32_t by_, shift_, factor_;
};

}  // namespace rondo::trainer::cuda
