// The scalar reference against expectations written by hand and against wider arithmetic.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels {
namespace {

using namespace test;

// Reduces one element of each source to one destination.
template <class T>
T reduce(DataType type, ReduceOp op, const std::vector<T>& values, uint32_t divisor = 1,
         const double* factors = nullptr) {
  std::vector<const std::byte*> sources;
  for (const T& value : values) sources.push_back(reinterpret_cast<const std::byte*>(&value));
  T result{};
  fold_into(reinterpret_cast<std::byte*>(&result), sources, scalar_move_function(type, op),
            {.divisor = divisor, .factors = factors});
  return result;
}

template <class T>
T scaled_sum(DataType type, const std::vector<T>& values, const std::vector<double>& factors,
             uint32_t divisor = 1) {
  return reduce(type, ReduceOp::kSum, values, divisor, factors.data());
}

template <class T>
void check_minimum_and_maximum(DataType type) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const auto least = [&](const std::vector<T>& v) { return reduce(type, ReduceOp::kMin, v); };
  const auto most = [&](const std::vector<T>& v) { return reduce(type, ReduceOp::kMax, v); };
  CHECK(least({3, -2, 5}) == -2);
  CHECK(most({3, -2, 5}) == 5);
  CHECK(least({1, -kInfinity}) == -kInfinity);
  CHECK(most({kInfinity, 1}) == kInfinity);
  for (const std::vector<T>& zeros : {std::vector<T>{T(-0.0), T(0.0)}, {T(0.0), T(-0.0)}}) {
    CHECK(std::signbit(least(zeros)));
    CHECK_FALSE(std::signbit(most(zeros)));
  }
  for (size_t at = 0; at < 4; ++at) {
    std::vector<T> values = {1, 2, -kInfinity, kInfinity};
    values[at] = kNan;
    CHECK(std::isnan(least(values)));
    CHECK(std::isnan(most(values)));
  }
}

TEST_CASE("Minimum and maximum order zeros and propagate NaN from every position") {
  check_minimum_and_maximum<float>(DataType::kFloat32);
  check_minimum_and_maximum<double>(DataType::kFloat64);
}

TEST_CASE("fp32 folds left to right, each step as exact arithmetic rounded once") {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    // Exponents of every size, results denormal and infinite among them.
    const auto value = [&] { return std::bit_cast<float>(static_cast<uint32_t>(random())); };
    const float a = value(), b = value(), c = value();
    if (std::isnan(a) || std::isnan(b) || std::isnan(c)) continue;
    // Rounding a double to fp32 equals rounding the exact sum, product or quotient, because
    // 53 >= 2 * 24 + 2.
    const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
    const float sum =
        static_cast<float>(static_cast<double>(static_cast<float>(static_cast<double>(a) + b)) + c);
    const float product =
        static_cast<float>(static_cast<double>(static_cast<float>(static_cast<double>(a) * b)) * c);
    const float average = static_cast<float>(static_cast<double>(sum) / 3);
    if (!same(reduce<float>(DataType::kFloat32, ReduceOp::kSum, {a, b, c}), sum) ||
        !same(reduce<float>(DataType::kFloat32, ReduceOp::kProd, {a, b, c}), product) ||
        !same(reduce<float>(DataType::kFloat32, ReduceOp::kAvg, {a, b, c}, 3), average)) {
      FAIL("a " << a << " b " << b << " c " << c);
    }
  }
  // The order shows: (2^24 + 1) + 1 loses both ones, 2^24 + (1 + 1) would not.
  CHECK(reduce<float>(DataType::kFloat32, ReduceOp::kSum, {0x1p24f, 1, 1}) == 0x1p24f);
}

TEST_CASE("fp64 by hand") {
  const auto sum = [](const std::vector<double>& v, uint32_t divisor = 1) {
    return reduce(DataType::kFloat64, divisor > 1 ? ReduceOp::kAvg : ReduceOp::kSum, v, divisor);
  };
  CHECK(sum({1.5, 2.25, -0.5}) == 3.25);
  CHECK(sum({0x1p53, 1, 1}) == 0x1p53);
  CHECK(sum({1, 0}, 3) == 1.0 / 3.0);
  CHECK(sum({std::numeric_limits<double>::denorm_min(), 0}) ==
        std::numeric_limits<double>::denorm_min());
  CHECK(reduce<double>(DataType::kFloat64, ReduceOp::kProd, {3, 0.5, -4}) == -6);
}

// `ulp`: above 1.
template <class T>
void check_small_float(DataType type, T (*from)(float), float (*to)(T), float ulp, float greatest) {
  const auto fold = [&](ReduceOp op, const std::vector<float>& values, uint32_t divisor = 1) {
    std::vector<T> narrow;
    for (const float value : values) narrow.push_back(from(value));
    return to(reduce(type, op, narrow, divisor));
  };
  INFO(name(type));
  // Two half ulps: rounding after each step would lose both.
  CHECK(fold(ReduceOp::kSum, {1, ulp / 2, ulp / 2}) == 1 + ulp);
  CHECK(fold(ReduceOp::kSum, {1, ulp / 2}) == 1);  // a tie, to even
  CHECK(fold(ReduceOp::kSum, {1, ulp, ulp / 2}) == 1 + 2 * ulp);
  CHECK(fold(ReduceOp::kAvg, {1, 2, 3, 4}, 4) == 2.5f);
  CHECK(fold(ReduceOp::kProd, {3, 0.5f, -4}) == -6);
  CHECK(fold(ReduceOp::kMin, {3, -7, 4}) == -7);
  CHECK(fold(ReduceOp::kMax, {3, -7, 4}) == 4);
  CHECK(std::isnan(fold(ReduceOp::kMax, {3, NAN, 4})));
  CHECK(std::signbit(fold(ReduceOp::kMin, {0.0f, -0.0f})));
  CHECK_FALSE(std::signbit(fold(ReduceOp::kMax, {0.0f, -0.0f})));
  // Overflow is of the result only, not half way.
  if (type != DataType::kBFloat16) {  // as large as fp32, where the sum is infinite
    CHECK(fold(ReduceOp::kAvg, {greatest, greatest}, 2) == greatest);
  }
  const float overflow = fold(ReduceOp::kSum, {greatest, greatest});
  CHECK((type == DataType::kFloat8E4M3 ? std::isnan(overflow) : std::isinf(overflow)));
  // Neither the factors nor the products are rounded to the stored type.
  CHECK(to(scaled_sum<T>(type, {from(1), from(1)}, {1 + ulp / 2, ulp / 2})) == 1 + ulp);
}

TEST_CASE("Small floats are folded in fp32 and rounded once") {
  check_small_float(DataType::kFloat16, half_from_float, float_from_half, 0x1p-10f, 65504);
  check_small_float(DataType::kBFloat16, bfloat16_from_float, float_from_bfloat16, 0x1p-7f,
                    0x1.fep127f);
  check_small_float(DataType::kFloat8E4M3, e4m3_from_float, float_from_e4m3, 0x1p-3f, 448);
  check_small_float(DataType::kFloat8E5M2, e5m2_from_float, float_from_e5m2, 0x1p-2f, 57344);
}

template <class T>
void check_integers(DataType type) {
  constexpr T kLeast = std::numeric_limits<T>::min(), kMost = std::numeric_limits<T>::max();
  constexpr auto kAll = static_cast<T>(~T{0});
  CHECK(reduce<T>(type, ReduceOp::kSum, {1, 2, 4}) == 7);
  CHECK(reduce<T>(type, ReduceOp::kSum, {kMost, 1}) == kLeast);
  CHECK(reduce<T>(type, ReduceOp::kProd, {3, 5, 7}) == 105);
  CHECK(reduce<T>(type, ReduceOp::kProd, {kMost, kMost}) == 1);
  CHECK(reduce<T>(type, ReduceOp::kMin, {kMost, 3, kLeast}) == kLeast);
  CHECK(reduce<T>(type, ReduceOp::kMax, {kLeast, 3, kMost}) == kMost);
  CHECK(reduce<T>(type, ReduceOp::kAvg, {5, 6}, 2) == 5);
  CHECK(reduce<T>(type, ReduceOp::kAvg, {kLeast, 0}, 3) == kLeast / 3);
  CHECK(reduce<T>(type, ReduceOp::kAvg, {kMost, 0}, 3) == kMost / 3);
  CHECK(reduce<T>(type, ReduceOp::kAvg, {50, 50}, 4'000'000'000u) == 0);
  // An average's sum does not wrap, a divided sum does.
  CHECK(reduce<T>(type, ReduceOp::kAvg, {kMost, kMost, kMost}, 3) == kMost);
  CHECK(reduce<T>(type, ReduceOp::kAvg, {kLeast, kLeast, kLeast}, 3) == kLeast);
  CHECK(reduce<T>(type, ReduceOp::kAvg, {kMost, kMost, kMost - 1}, 3) == kMost - 1);
  CHECK(reduce<T>(type, ReduceOp::kAvg, {kLeast, kMost}, 2) ==
        (std::is_signed_v<T> ? 0 : kMost / 2));
  CHECK(reduce<T>(type, ReduceOp::kAvg, std::vector<T>(65535, kMost), 65535) == kMost);
  CHECK(reduce<T>(type, ReduceOp::kAvg, std::vector<T>(65535, kLeast), 65535) == kLeast);
  CHECK(reduce<T>(type, ReduceOp::kSum, {kMost, kMost}, 2) == static_cast<T>(-2) / 2);
  CHECK(reduce<T>(type, ReduceOp::kBand, {kAll, 0x5c, 0x6a}) == 0x48);
  CHECK(reduce<T>(type, ReduceOp::kBor, {0x41, 0x12, 0}) == 0x53);
  CHECK(reduce<T>(type, ReduceOp::kBxor, {kAll, 0x35, kAll, 0x0f}) == 0x3a);
  CHECK(scaled_sum<T>(type, {5, 6, 7}, {2, 1, 3}) == 37);
  CHECK(scaled_sum<T>(type, {5, 6}, {2.9, 1}) == 16);           // the factor loses its fraction
  CHECK(scaled_sum<T>(type, {5}, {-1}) == static_cast<T>(-5));  // wraps
  CHECK(scaled_sum<T>(type, {kMost}, {2}) == static_cast<T>(-2));
  CHECK(scaled_sum<T>(type, {5, 1}, {NAN, 1}) == 1);
  CHECK(scaled_sum<T>(type, {5, 1}, {0x1p64, 1}) == 1);
  CHECK(scaled_sum<T>(type, {5, 7}, {2, 3}, 2) == 15);
}

TEST_CASE("Integers wrap, but not in averages, which truncate towards zero") {
  check_integers<int8_t>(DataType::kInt8);
  check_integers<int16_t>(DataType::kInt16);
  check_integers<int32_t>(DataType::kInt32);
  check_integers<int64_t>(DataType::kInt64);
  check_integers<uint8_t>(DataType::kUint8);
  check_integers<uint16_t>(DataType::kUint16);
  check_integers<uint32_t>(DataType::kUint32);
  check_integers<uint64_t>(DataType::kUint64);
  CHECK(reduce<int32_t>(DataType::kInt32, ReduceOp::kAvg, {-5, -2}, 2) == -3);
  CHECK(reduce<int64_t>(DataType::kInt64, ReduceOp::kAvg, {-5, -2}, 4) == -1);
  CHECK(reduce<uint8_t>(DataType::kUint8, ReduceOp::kAvg, {200, 100}, 256) == 1);
  CHECK(reduce<int8_t>(DataType::kInt8, ReduceOp::kAvg, {-5, -2}, 2) == -3);
  // What fills 64 bits, and a factor beyond int64_t.
  CHECK(scaled_sum<uint64_t>(DataType::kUint64, {1}, {0x1p63}) == uint64_t{1} << 63);
  CHECK(scaled_sum<int8_t>(DataType::kInt8, {1}, {300}) == 44);
}

TEST_CASE("Bools are true for any byte but zero, and results are 0 or 1") {
  const auto fold = [](ReduceOp op, const std::vector<uint8_t>& values) {
    return int{reduce(DataType::kBool, op, values)};
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBor}) {
    CHECK(fold(op, {0, 0, 0}) == 0);
    CHECK(fold(op, {0, 0x80, 0}) == 1);
    CHECK(fold(op, {2, 4, 0}) == 1);
    CHECK(fold(op, std::vector<uint8_t>(256, 1)) == 1);  // does not wrap
  }
  for (const ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kBand}) {
    CHECK(fold(op, {1, 2, 4}) == 1);  // no bit in common
    CHECK(fold(op, {16, 16}) == 1);   // a product of bytes would be 0
    CHECK(fold(op, {3, 0}) == 0);
  }
  CHECK(fold(ReduceOp::kBxor, {1, 2}) == 0);
  CHECK(fold(ReduceOp::kBxor, {1, 2, 4}) == 1);
  CHECK(fold(ReduceOp::kBxor, {0, 8}) == 1);
  CHECK(int{scaled_sum<uint8_t>(DataType::kBool, {2, 0}, {0.5, 1})} == 1);
  CHECK(int{scaled_sum<uint8_t>(DataType::kBool, {2, 0}, {0, 1})} == 0);
}

TEST_CASE("A scaled sum multiplies each source by its factor, and then adds") {
  CHECK(scaled_sum<float>(DataType::kFloat32, {1, 2, 3}, {0.5, 1, -2}) == -3.5f);
  CHECK(scaled_sum<double>(DataType::kFloat64, {1, 3}, {1.0 / 3, 1}) == 1.0 / 3 + 3);
  CHECK(scaled_sum<float>(DataType::kFloat32, {8}, {0.25}) == 2);  // one source: no copy
  CHECK(scaled_sum<float>(DataType::kFloat32, {4, 8}, {0.5, 2}, 3) == 6);
  // The product is rounded, not fused into the sum: 2^-24 of (1 + 2^-12)^2 is lost.
  CHECK(scaled_sum<float>(DataType::kFloat32, {-1, 1 + 0x1p-12f}, {1, 1 + 0x1p-12}) == 0x1p-11f);
  // The factor in fp32, nearest to a third.
  CHECK(scaled_sum<float>(DataType::kFloat32, {3}, {1.0 / 3}) == 3 * (1.0f / 3));
}

TEST_CASE("A copy keeps every bit") {
  CHECK(reduce<uint16_t>(DataType::kFloat16, ReduceOp::kSum, {0x7c01}) == 0x7c01);  // signalling
  CHECK(reduce<uint16_t>(DataType::kFloat16, ReduceOp::kAvg, {half_from_float(7)}, 2) ==
        half_from_float(3.5f));
}

}  // namespace
}  // namespace rondo::kernels
