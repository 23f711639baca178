// The scalar conversions of fp8 against their definitions in double arithmetic: all 256 patterns,
// and narrowing against a search through all of them.
#include "kernels/float8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "tests/harness/catch.hpp"

namespace rondo::kernels::float8_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Format {
  int fraction_bits, bias;
  int last;  // the largest finite pattern
  uint8_t (*from_float)(float);
  float (*to_float)(uint8_t);
};

constexpr Format kE4M3 = {3, 7, 0x7e, e4m3_from_float, float_from_e4m3};
constexpr Format kE5M2 = {2, 15, 0x7b, e5m2_from_float, float_from_e5m2};

// What a pattern without its sign means by the definition of the format, had it no special ones.
double value_of(const Format& format, int magnitude) {
  const int exponent = magnitude >> format.fraction_bits;
  const int fraction = magnitude & ((1 << format.fraction_bits) - 1);
  const int significand = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
  return std::ldexp(significand, std::max(exponent, 1) - format.bias - format.fraction_bits);
}

// All patterns' values from 0 to one past the last finite one, which stands for overflow.
const std::vector<double>& values_of(const Format& format) {
  static std::map<int, std::vector<double>> all;
  std::vector<double>& values = all[format.last];
  for (int pattern = static_cast<int>(values.size()); pattern <= format.last + 1; ++pattern) {
    values.push_back(value_of(format, pattern));
  }
  return values;
}

// The nearest of all patterns; of two as near, the even one.
int nearest(const Format& format, double magnitude) {
  const std::vector<double>& values = values_of(format);
  magnitude = std::min(magnitude, values.back());  // keeps differences exact
  int best = 0;
  double least = magnitude;
  for (int pattern = 1; const double value : std::span(values).subspan(1)) {
    const double distance = std::fabs(value - magnitude);
    if (distance < least || (distance == least && pattern % 2 == 0)) {
      best = pattern;
      least = distance;
    }
    ++pattern;
  }
  return best;
}

bool narrows(const Format& format, float value) {
  const int found = format.from_float(value);
  const int sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return std::isnan(format.to_float(static_cast<uint8_t>(found)));
  const int expected = nearest(format, std::fabs(static_cast<double>(value)));
  return found == (sign | expected);
}

TEST_CASE("Every fp8 widens to its value and comes back") {
  CHECK(value_of(kE4M3, kE4M3.last) == 448);
  CHECK(value_of(kE5M2, kE5M2.last) == 57344);
  for (const Format& format : {kE4M3, kE5M2}) {
    for (int bits = 0; bits < 256; ++bits) {
      const int magnitude = bits & 0x7f;
      const float wide = format.to_float(static_cast<uint8_t>(bits));
      INFO("fraction bits " << format.fraction_bits << " pattern " << bits);
      CHECK(std::signbit(wide) == (bits >= 0x80));
      const bool infinite = format.bias == 15 && magnitude == 0x7c;
      if (magnitude <= format.last) {
        CHECK(std::fabs(static_cast<double>(wide)) == value_of(format, magnitude));
      } else {
        CHECK(std::isinf(wide) == infinite);
        CHECK(std::isnan(wide) == !infinite);
      }
      const int quiet = magnitude > 0x7c && format.bias == 15 ? 2 : 0;  // E5M2's signalling NaN
      CHECK(format.from_float(wide) == (bits | quiet));
    }
  }
}

TEST_CASE("Narrowing to fp8 finds the nearest of all patterns, ties to even") {
  for (const Format& format : {kE4M3, kE5M2}) {
    int wrong = 0;
    const auto check = [&](float value) {
      wrong += !narrows(format, value);
      wrong += !narrows(format, -value);
    };
    // Every value, every tie, up to the one where overflow begins, and the fp32s beside them.
    for (int pattern = 0; pattern <= format.last; ++pattern) {
      const double value = value_of(format, pattern), next = value_of(format, pattern + 1);
      for (const double edge : {value, (value + next) / 2, next}) {
        const auto narrow = static_cast<float>(edge);  // exact
        check(narrow);
        check(std::nextafter(narrow, 0.0f));
        check(std::nextafter(narrow, kInfinity));
      }
    }
    std::mt19937 random(3);
    for (int i = 0; i < 100'000; ++i) check(std::bit_cast<float>(static_cast<uint32_t>(random())));
    // Where most of those are not: between half of the least value and twice the greatest.
    std::uniform_real_distribution<float> exponent(-18, 17);
    for (int i = 0; i < 100'000; ++i) check(std::exp2(exponent(random)));
    CHECK(wrong == 0);
  }
}

TEST_CASE("fp8 overflows to NaN in E4M3 and to infinity in E5M2, and keeps NaN and signs of zero") {
  CHECK(e4m3_from_float(464.0f) == 0x7e);  // the tie between 448 and what would be 480
  CHECK(e4m3_from_float(std::nextafter(464.0f, kInfinity)) == 0x7f);
  CHECK(e4m3_from_float(-1e30f) == 0xff);
  CHECK(e4m3_from_float(kInfinity) == 0x7f);
  CHECK(e4m3_from_float(-kInfinity) == 0xff);
  CHECK(e5m2_from_float(std::nextafter(61440.0f, 0.0f)) == 0x7b);
  CHECK(e5m2_from_float(61440.0f) == 0x7c);
  CHECK(e5m2_from_float(-1e30f) == 0xfc);
  CHECK(e5m2_from_float(kInfinity) == 0x7c);
  CHECK(e5m2_from_float(-kInfinity) == 0xfc);
  for (const Format& format : {kE4M3, kE5M2}) {
    CHECK(format.from_float(0.0f) == 0);
    CHECK(format.from_float(-0.0f) == 0x80);
    CHECK(format.from_float(std::numeric_limits<float>::denorm_min()) == 0);
    CHECK(format.from_float(-std::numeric_limits<float>::denorm_min()) == 0x80);
    for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
      CHECK(std::isnan(format.to_float(format.from_float(std::bit_cast<float>(nan)))));
    }
  }
}

}  // namespace
}  // namespace rondo::kernels::float8_test
