// The scalar conversions of floats below 32 bits against their definitions in double arithmetic:
// every pattern, and narrowing to the nearest of all patterns.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "tests/harness/catch.hpp"

namespace rondo::kernels::small_floats_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();

struct Format {
  int bits, fraction_bits;
  int last;      // the largest finite pattern
  int overflow;  // the pattern of what is too large
  int quiet;     // the bit that makes a NaN quiet
  double greatest;
  int (*narrow)(float);
  float (*widen)(int);

  int sign() const { return 1 << (bits - 1); }
};

template <class T, T (*from_float)(float)>
int narrowed(float value) {
  return from_float(value);
}
template <class T, float (*to_float)(T)>
float widened(int pattern) {
  return to_float(static_cast<T>(pattern));
}

const Format kFormats[] = {
    {16, 10, 0x7bff, 0x7c00, 0x200, 65504, narrowed<uint16_t, half_from_float>,
     widened<uint16_t, float_from_half>},
    {16, 7, 0x7f7f, 0x7f80, 0x40, 0x1.fep127, narrowed<uint16_t, bfloat16_from_float>,
     widened<uint16_t, float_from_bfloat16>},
    {8, 3, 0x7e, 0x7f, 0, 448, narrowed<uint8_t, e4m3_from_float>,
     widened<uint8_t, float_from_e4m3>},
    {8, 2, 0x7b, 0x7c, 2, 57344, narrowed<uint8_t, e5m2_from_float>,
     widened<uint8_t, float_from_e5m2>}};

// What all patterns without a sign mean by the definition of the format, up to one past the last
// finite one, which stands for overflow.
std::vector<double> values_of(const Format& format) {
  const int exponent_bits = format.bits - 1 - format.fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  std::vector<double> values;
  for (int pattern = 0; pattern <= format.last + 1; ++pattern) {
    const int exponent = pattern >> format.fraction_bits;
    const int fraction = pattern & ((1 << format.fraction_bits) - 1);
    const int significand = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
    values.push_back(std::ldexp(significand, std::max(exponent, 1) - bias - format.fraction_bits));
  }
  return values;
}

// The nearest of all patterns; of two as near, the even one.
int nearest(const std::vector<double>& values, double magnitude) {
  const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) return static_cast<int>(values.size()) - 1;
  const auto pattern = static_cast<int>(above - values.begin());
  if (*above == magnitude) return pattern;
  const double up = *above - magnitude, down = magnitude - *(above - 1);  // exact
  return up < down || (up == down && pattern % 2 == 0) ? pattern : pattern - 1;
}

TEST_CASE("Every pattern of a small float widens to its value and comes back") {
  for (const Format& format : kFormats) {
    const std::vector<double> values = values_of(format);
    INFO(format.bits << " bits, " << format.fraction_bits << " of the fraction");
    CHECK(values[static_cast<size_t>(format.last)] == format.greatest);
    int wrong = 0;
    for (int pattern = 0; pattern < 1 << format.bits; ++pattern) {
      const int magnitude = pattern & ~format.sign();
      const float wide = format.widen(pattern);
      const bool is_nan =
          magnitude > format.last && (format.quiet == 0 || magnitude > format.overflow);
      if (is_nan) {
        wrong += !std::isnan(wide) || format.narrow(wide) != (pattern | format.quiet);
        continue;
      }
      const double value =
          magnitude > format.last ? double{kInfinity} : values[static_cast<size_t>(magnitude)];
      wrong += std::fabs(wide) != value || std::signbit(wide) != (pattern != magnitude);
      wrong += format.narrow(wide) != pattern;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("Narrowing finds the nearest of all patterns, ties to even, for both signs") {
  for (const Format& format : kFormats) {
    const std::vector<double> values = values_of(format);
    int wrong = 0;
    const auto check = [&](float value) {
      if (std::isnan(value)) {
        wrong += !std::isnan(format.widen(format.narrow(value)));
        return;
      }
      const int expected = nearest(values, std::fabs(static_cast<double>(value)));
      const int sign = std::signbit(value) ? format.sign() : 0;
      wrong += format.narrow(value) != (expected | sign);
      wrong += format.narrow(-value) != (expected | (sign ^ format.sign()));
    };
    // Every value, every tie, up to the one where overflow begins, and the fp32s next to them.
    for (size_t at = 0; at + 1 < values.size(); ++at) {
      const double middle = values[at] / 2 + values[at + 1] / 2;
      for (const double edge : {values[at], middle}) {
        const auto narrow = static_cast<float>(edge);
        REQUIRE(static_cast<double>(narrow) == edge);
        check(narrow);
        check(std::nextafter(narrow, 0.0f));
        check(std::nextafter(narrow, kInfinity));
      }
    }
    std::mt19937 random(3);
    for (int i = 0; i < 100'000; ++i) check(std::bit_cast<float>(static_cast<uint32_t>(random())));
    // Where most of those are not, for fp8: between half of the least value and twice the greatest.
    std::uniform_real_distribution<float> exponent(-18, 17);
    for (int i = 0; i < 100'000; ++i) check(std::exp2(exponent(random)));
    INFO(format.bits << " bits, " << format.fraction_bits << " of the fraction");
    CHECK(wrong == 0);
  }
}

TEST_CASE("Narrowing keeps zeros' signs and NaNs, and overflows to infinity, in E4M3 to NaN") {
  for (const Format& format : kFormats) {
    INFO(format.bits << " bits, " << format.fraction_bits << " of the fraction");
    for (const int sign : {0, format.sign()}) {
      const auto narrow = [&](float value) { return format.narrow(sign == 0 ? value : -value); };
      CHECK(narrow(0.0f) == sign);
      CHECK(narrow(kLeast) == sign);
      CHECK(narrow(kInfinity) == (format.overflow | sign));
      CHECK(narrow(std::numeric_limits<float>::max()) == (format.overflow | sign));
    }
    // A NaN whose upper bits are all zero must not turn into Inf, and one all ones not into a zero.
    for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
      CHECK(std::isnan(format.widen(format.narrow(std::bit_cast<float>(nan)))));
    }
  }
}

}  // namespace
}  // namespace rondo::kernels::small_floats_test
