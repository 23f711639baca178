// Divisions by a divisor known before, as GPUs execute them, equal the reference's in every bit.
#include "kernels/cuda/divide_by.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/harness/catch.hpp"

namespace rondo::kernels {
namespace {

using cuda::DivideBy;

/// Numbers of ranks, and such as no communicator has: powers of two, their neighbours, the largest.
std::vector<uint32_t> divisors() {
  std::vector<uint32_t> all;
  for (uint32_t d = 2; d < 100; ++d) all.push_back(d);
  for (int bit = 7; bit < 32; ++bit) {
    for (const uint32_t d : {0u, 1u, 0xffffffffu}) all.push_back((uint32_t{1} << bit) + d);
  }
  std::mt19937 random(5);
  for (int i = 0; i < 50; ++i) all.push_back(static_cast<uint32_t>(random()) >> i % 30 | 2);
  all.push_back(0xffffffffu);
  return all;
}

/// Calls values(divisor, check) for every divisor; check(value) compares the quotient with the
/// reference's.
template <class T, class Values>
void check_divisions(const Values& values) {
  for (const uint32_t divisor : divisors()) {
    const DivideBy<T> divided(divisor);
    size_t wrong = 0;
    values(divisor, [&](T value) {
      const T actual = divided(value), expected = divide(value, divisor);
      const bool both_nan = actual != actual && expected != expected;
      wrong += std::memcmp(&actual, &expected, sizeof(T)) != 0 && !both_nan;
      if constexpr (std::is_same_v<T, Int128>) wrong += expected != value / T{divisor};
    });
    INFO("divisor " << divisor);
    CHECK(wrong == 0);
  }
}

TEST_CASE("A float divided by multiplications is rounded as by a division") {
  std::mt19937 random(3);
  check_divisions<float>([&](uint32_t divisor, const auto& check_value) {
    const auto check = [&](uint32_t bits) {
      for (const uint32_t sign : {0u, 0x80000000u}) check_value(std::bit_cast<float>(bits | sign));
    };
    // Denormals, where a quotient can be half way between two: the least, and around each multiple
    // of half the divisor.
    for (uint32_t bits = 0; bits < 3000; ++bits) check(bits);
    for (uint64_t half = 1; half < 2000; ++half) {
      const uint64_t bits = half * divisor / 2;
      if (bits < 0x1000000) check(static_cast<uint32_t>(bits));
    }
    for (uint32_t exponent = 0; exponent < 256; ++exponent) {  // 255: infinity and NaN
      for (const uint32_t fraction : {0u, 1u, 0x7fffffu}) check(exponent << 23 | fraction);
      for (int i = 0; i < 20; ++i) {
        check(exponent << 23 | (static_cast<uint32_t>(random()) & 0x7fffff));
      }
    }
  });
}

TEMPLATE_TEST_CASE("An integer divided by a multiplication is truncated as by a division", "",
                   int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t) {
  using Limits = std::numeric_limits<TestType>;
  std::mt19937_64 random(3);
  check_divisions<TestType>([&](uint32_t divisor, const auto& check_value) {
    const auto check = [&](uint64_t bits) { check_value(static_cast<TestType>(bits)); };
    for (uint64_t near = 0; near < 300; ++near) {
      check(near);
      check(0 - near);
      check(static_cast<uint64_t>(Limits::max()) - near);
      check(static_cast<uint64_t>(Limits::min()) + near);
    }
    // Around multiples of the divisor, of all sizes.
    for (int i = 0; i < 1000; ++i) {
      const uint64_t any = random() >> i % 64, multiple = any / divisor * divisor;
      for (const uint64_t bits : {any, multiple - 1, multiple, multiple + 1, 0 - multiple}) {
        check(bits);
      }
    }
  });
}

TEST_CASE("A sum of 64-bit integers is divided as 128-bit integers are") {
  std::mt19937_64 random(5);
  check_divisions<Int128>([&](uint32_t divisor, const auto& check) {
    for (int i = 0; i < 2000; ++i) {
      const Int128 any = (static_cast<Int128>(random() >> 48) << 64 | random()) >> i % 80;
      const Int128 multiple = any / divisor * divisor;
      for (const Int128 value : {any, multiple - 1, multiple, multiple + 1}) {
        check(value);
        check(-value);
      }
    }
  });
}

}  // namespace
}  // namespace rondo::kernels
