// The scalar conversions of fp16 and bfloat16 against their definitions in double arithmetic: every
// value, and every tie between two neighbours with its two neighbours in fp32.
#include "kernels/half.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/harness/catch.hpp"

namespace rondo::kernels::half_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Format {
  int fraction_bits, exponent_bits;
  uint16_t (*from_float)(float);
  float (*to_float)(uint16_t);
};

constexpr Format kHalf = {10, 5, half_from_float, float_from_half};
constexpr Format kBFloat16 = {7, 8, bfloat16_from_float, float_from_bfloat16};

// What a pattern without its sign means, by the definition of the format; the pattern of Inf counts
// as the next power of two, which is where rounding to it begins.
double value_of(const Format& format, int magnitude) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = magnitude >> format.fraction_bits;
  const int fraction = magnitude & ((1 << format.fraction_bits) - 1);
  const int significand = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
  return std::ldexp(significand, std::max(exponent, 1) - bias - format.fraction_bits);
}

int infinity_of(const Format& format) {
  return ((1 << format.exponent_bits) - 1) << format.fraction_bits;
}

TEST_CASE("Every 16-bit float widens to its value and comes back") {
  for (const Format& format : {kHalf, kBFloat16}) {
    int wrong = 0;
    for (int bits = 0; bits < 65536; ++bits) {
      const auto pattern = static_cast<uint16_t>(bits);
      const int magnitude = bits & 0x7fff;
      const float wide = format.to_float(pattern);
      if (magnitude > infinity_of(format)) {
        const int quiet = 1 << (format.fraction_bits - 1);
        wrong += !std::isnan(wide) || format.from_float(wide) != (pattern | quiet);
        continue;
      }
      const double value =
          magnitude == infinity_of(format) ? kInfinity : value_of(format, magnitude);
      wrong += std::fabs(wide) != value || std::signbit(wide) != (bits >= 0x8000);
      wrong += format.from_float(wide) != pattern;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Narrowing rounds to nearest, ties to even, for both signs") {
  for (const Format& format : {kHalf, kBFloat16}) {
    int wrong = 0;
    for (int magnitude = 0; magnitude < infinity_of(format); ++magnitude) {
      // Half way to the next one. Exact in fp32, as it has at least one bit more.
      const double middle = value_of(format, magnitude) / 2 + value_of(format, magnitude + 1) / 2;
      const auto tie = static_cast<float>(middle);
      const int even = magnitude + (magnitude & 1);
      wrong += static_cast<double>(tie) != middle;
      wrong += format.from_float(tie) != even;
      wrong += format.from_float(-tie) != (even | 0x8000);
      wrong += format.from_float(std::nextafter(tie, 0.0f)) != magnitude;
      wrong += format.from_float(std::nextafter(tie, kInfinity)) != magnitude + 1;
      wrong += format.from_float(-std::nextafter(tie, kInfinity)) != ((magnitude + 1) | 0x8000);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Narrowing keeps zeros' signs, infinities and NaNs, and overflows to infinity") {
  for (const Format& format : {kHalf, kBFloat16}) {
    const auto infinity = static_cast<uint16_t>(infinity_of(format));
    CHECK(format.from_float(0.0f) == 0);
    CHECK(format.from_float(-0.0f) == 0x8000);
    CHECK(format.from_float(kInfinity) == infinity);
    CHECK(format.from_float(-kInfinity) == (infinity | 0x8000));
    CHECK(format.from_float(std::numeric_limits<float>::max()) == infinity);
    CHECK(format.from_float(std::numeric_limits<float>::denorm_min()) == 0);
    // A NaN whose upper bits are all zero must not turn into Inf, and one all ones not into a zero.
    for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
      CHECK(std::isnan(format.to_float(format.from_float(std::bit_cast<float>(nan)))));
    }
  }
  CHECK(half_from_float(65504.0f) == 0x7bff);
  CHECK(half_from_float(65519.0f) == 0x7bff);
  CHECK(half_from_float(65520.0f) == 0x7c00);
}

}  // namespace
}  // namespace rondo::kernels::half_test
