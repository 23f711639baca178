// The norm of the gradients, clipping, and finding what is no number.
#include "trainer/optim/clip.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/harness/catch.hpp"
#include "trainer/random.hpp"

using namespace rondo::trainer;

namespace {

template <class T>
std::vector<T> random_values(size_t count, uint64_t seed) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(symmetric_unit(mix(seed) ^ i));
  return values;
}

template <class T>
double norm_of(const std::vector<GradientView<T>>& gradients) {
  return squared_norm<T>(gradients);
}

}  // namespace

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

TEMPLATE_TEST_CASE("clip: the squared norm is the blocks' sums in order", "", float, double) {
  const std::vector<size_t> counts = {3, 4096, 0, 4097, 10000, 1};
  std::vector<std::vector<TestType>> parameters;
  std::vector<GradientView<TestType>> views;
  for (const size_t count : counts) {
    parameters.push_back(random_values<TestType>(count, parameters.size()));
  }
  double blocks = 0;
  long double exact = 0;
  for (const std::vector<TestType>& parameter : parameters) {
    views.push_back({parameter.data(), parameter.size()});
    for (size_t begin = 0; begin < parameter.size(); begin += 4096) {
      blocks +=
          block_sum(parameter.data() + begin, std::min<size_t>(4096, parameter.size() - begin));
    }
    for (const TestType x : parameter) exact += static_cast<long double>(x) * x;
  }
  CHECK(norm_of(views) == blocks);
  CHECK(std::abs(norm_of(views) - static_cast<double>(exact)) < 1e-13 * blocks);
}

TEST_CASE("clip: the norm does not depend on where the parameters lie") {
  const std::vector<float> values = random_values<float>(9001, 4);
  const double expected = norm_of<float>({{values.data(), values.size()}});
  for (size_t shift = 1; shift < 17; ++shift) {
    std::vector<float> moved(shift + values.size());
    std::copy(values.begin(), values.end(), moved.begin() + static_cast<ptrdiff_t>(shift));
    CHECK(norm_of<float>({{moved.data() + shift, values.size()}}) == expected);
  }
}

TEST_CASE("clip: a float's square is too large for a float, but not for the sum") {
  const std::vector<float> values(100, 1e30f);
  CHECK(norm_of<float>({{values.data(), 100}}) == Approx(1e62).epsilon(1e-6));
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
    std::vector<TestType> values = random_values<TestType>(count + 2, 6);
    const std::vector<TestType> before = values;
    scale(values.data() + 1, count, TestType{0.3f});
    CHECK(values.front() == before.front());
    CHECK(values.back() == before.back());
    for (size_t i = 1; i <= count; ++i) REQUIRE(values[i] == before[i] * TestType{0.3f});
  }
}

TEMPLATE_TEST_CASE("clip: one value that is no number is found wherever it is", "", float, double) {
  using Limits = std::numeric_limits<TestType>;
  for (size_t count = 0; count < 40; ++count) {
    std::vector<TestType> values(count, Limits::max());
    CHECK(all_finite(values.data(), count));
    for (size_t i = 0; i < count; ++i) {
      for (const TestType bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
        values[i] = bad;
        REQUIRE_FALSE(all_finite(values.data(), count));
        REQUIRE_FALSE(std::isfinite(block_sum(values.data(), count)));
      }
      values[i] = i % 2 == 0 ? -Limits::max() : Limits::denorm_min();
    }
    CHECK(all_finite(values.data(), count));
  }
}
