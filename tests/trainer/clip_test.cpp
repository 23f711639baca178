// The norm of the gradients, clipping, and finding what is no number.
#include "trainer/optim/clip.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/trainer/layer_values.hpp"

namespace rondo::trainer::clip_test {

using testing::noise;

TEMPLATE_TEST_CASE("clip: sums of squares of whole numbers are exact", "", float, double) {
  for (const size_t count : {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 4095, 4096}) {
    std::vector<TestType> values(count);
    double expected = 0;
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<TestType>(i % 1000 + 1) * (i % 2 == 0 ? 1 : -1);
      expected += static_cast<double>((i % 1000 + 1) * (i % 1000 + 1));
    }
    CHECK(block_sum(values.data(), count) == expected);
  }
}

TEMPLATE_TEST_CASE("clip: a block's sum is that of its squares, wherever the block lies", "", float,
                   double) {
  const std::vector<TestType> values = noise<TestType>(kNormBlock, 4);
  long double exact = 0;
  for (const TestType x : values) exact += static_cast<long double>(x) * x;
  const double sum = block_sum(values.data(), values.size());
  CHECK(std::abs(sum - static_cast<double>(exact)) < 1e-13 * sum);
  for (size_t shift = 1; shift < 17; ++shift) {
    std::vector<TestType> moved(shift + values.size());
    std::copy(values.begin(), values.end(), moved.begin() + static_cast<ptrdiff_t>(shift));
    CHECK(block_sum(moved.data() + shift, values.size()) == sum);
  }
}

TEST_CASE("clip: a float's square is too large for a float, but not for the sum") {
  const std::vector<float> values(100, 1e30f);
  CHECK(block_sum(values.data(), 100) == Approx(1e62).epsilon(1e-6));
}

TEST_CASE("clip: the coefficient is PyTorch's") {
  CHECK(clip_coefficient(2, 1) == 1 / 2.000001);
  CHECK(clip_coefficient(0.5, 1) == 1);
  CHECK(clip_coefficient(0, 1) == 1);
  CHECK(clip_coefficient(1, 1) < 1);
  CHECK(clip_coefficient(std::numeric_limits<double>::infinity(), 1) == 0);
  CHECK(std::isnan(clip_coefficient(std::numeric_limits<double>::quiet_NaN(), 1)));
}

TEMPLATE_TEST_CASE("clip: scaling multiplies each element once, and no other", "", float, double) {
  for (size_t count = 0; count < 40; ++count) {
    std::vector<TestType> values = noise<TestType>(count + 2, 6);
    const std::vector<TestType> before = values;
    simd::flat_kernels<TestType>().multiply(values.data() + 1, count, TestType{0.3f});
    CHECK(values.front() == before.front());
    CHECK(values.back() == before.back());
    for (size_t i = 1; i <= count; ++i) REQUIRE(values[i] == before[i] * TestType{0.3f});
  }
}

TEMPLATE_TEST_CASE("clip: one value that is no number is found wherever it is", "", float, double) {
  using Limits = std::numeric_limits<TestType>;
  for (size_t count = 0; count < 40; ++count) {
    std::vector<TestType> values(count, Limits::max());
    CHECK(simd::flat_kernels<TestType>().all_finite(values.data(), count));
    for (size_t i = 0; i < count; ++i) {
      for (const TestType bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
        values[i] = bad;
        REQUIRE_FALSE(simd::flat_kernels<TestType>().all_finite(values.data(), count));
        REQUIRE_FALSE(std::isfinite(block_sum(values.data(), count)));
      }
      values[i] = i % 2 == 0 ? -Limits::max() : Limits::denorm_min();
    }
    CHECK(simd::flat_kernels<TestType>().all_finite(values.data(), count));
  }
}

}  // namespace rondo::trainer::clip_test
