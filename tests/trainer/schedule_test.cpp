// The learning rate against closed forms.
#include "trainer/optim/schedule.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"

using namespace rondo;
using namespace rondo::trainer;
using rondo::testing::contains;

TEST_CASE("schedule: constant, at every step the same bits") {
  const ScheduleOptions options{.base_rate = 0.1};
  for (const uint64_t step : {1ull, 2ull, 1000ull, ~0ull}) {
    CHECK(learning_rate(options, step) == 0.1);
  }
}

TEST_CASE("schedule: the warm-up is a straight line to the peak") {
  const ScheduleOptions options{.base_rate = 0.8, .warmup_steps = 4};
  CHECK(learning_rate(options, 1) == 0.2);
  CHECK(learning_rate(options, 2) == 0.4);
  CHECK(learning_rate(options, 3) == Approx(0.6).epsilon(1e-15));
  CHECK(learning_rate(options, 4) == 0.8);
  CHECK(learning_rate(options, 5) == 0.8);
}

TEST_CASE("schedule: a decay goes from the end of the warm-up to the last step") {
  const double root = std::sqrt(0.5);
  const std::pair<LrDecay, std::vector<double>> quarters[] = {
      {LrDecay::kCosine, {0.1 + 0.9 * (1 + root) / 2, 0.55, 0.1 + 0.9 * (1 - root) / 2}},
      {LrDecay::kLinear, {0.775, 0.55, 0.325}}};
  for (const auto& [decay, expected] : quarters) {
    const ScheduleOptions options{
        .base_rate = 1, .warmup_steps = 10, .decay = decay, .min_rate = 0.1, .last_step = 110};
    CHECK(learning_rate(options, 5) == 0.5);
    CHECK(learning_rate(options, 10) == 1);
    for (uint64_t q = 0; q < 3; ++q) {
      CHECK(learning_rate(options, 35 + 25 * q) == Approx(expected[q]).epsilon(1e-14));
    }
    CHECK(learning_rate(options, 110) == 0.1);
    CHECK(learning_rate(options, 111) == 0.1);
    for (uint64_t step = 10; step < 110; ++step) {
      const double less = learning_rate(options, step) - learning_rate(options, step + 1);
      REQUIRE(less > 0);
      if (decay == LrDecay::kLinear) REQUIRE(less == Approx(0.009).epsilon(1e-12));
    }
  }
}

TEST_CASE("schedule: edges of a decay without a warm-up, and of one that is all warm-up") {
  const LrDecay decay = GENERATE(LrDecay::kCosine, LrDecay::kLinear);
  ScheduleOptions options{.base_rate = 2, .decay = decay, .last_step = 3};
  CHECK(learning_rate(options, 1) == 2);
  CHECK(learning_rate(options, 2) == Approx(1).epsilon(1e-15));
  CHECK(learning_rate(options, 3) == 0);
  options.last_step = 1;
  CHECK(learning_rate(options, 1) == 2);
  CHECK(learning_rate(options, 2) == 0);
  options.warmup_steps = 8;
  options.last_step = 4;
  CHECK(learning_rate(options, 4) == 1);
  CHECK(learning_rate(options, 8) == 2);
}

TEST_CASE("schedule: the rate follows the batch linearly, with its root, or not") {
  ScheduleOptions options{.base_rate = 0.1, .base_batch = 256, .global_batch = 1024};
  CHECK(peak_rate(options) == 0.1);
  options.scale = LrScale::kLinear;
  CHECK(peak_rate(options) == Approx(0.4).epsilon(1e-15));
  options.scale = LrScale::kSqrt;
  CHECK(peak_rate(options) == Approx(0.2).epsilon(1e-15));
  options.global_batch = 64;
  CHECK(peak_rate(options) == Approx(0.05).epsilon(1e-15));
  options.warmup_steps = 2;
  CHECK(learning_rate(options, 1) == Approx(0.025).epsilon(1e-15));
}

TEST_CASE("schedule: what makes no schedule is refused") {
  CHECK(check({}).ok());
  CHECK(check({.base_rate = 0}).ok());
  const ScheduleOptions bad[] = {
      {.base_rate = -1},
      {.base_rate = std::numeric_limits<double>::quiet_NaN()},
      {.base_rate = std::numeric_limits<double>::infinity()},
      {.scale = LrScale::kLinear, .base_batch = 0, .global_batch = 1},
      {.scale = LrScale::kSqrt, .base_batch = 1, .global_batch = 0},
      {.base_rate = 0.1, .decay = LrDecay::kCosine, .min_rate = 0.2, .last_step = 9},
      {.base_rate = 0.1, .decay = LrDecay::kCosine, .min_rate = -0.2, .last_step = 9},
      {.decay = LrDecay::kCosine, .last_step = 0},
      {.base_rate = 0.1, .decay = LrDecay::kLinear, .min_rate = 0.2, .last_step = 9},
      {.base_rate = 0.1, .decay = LrDecay::kLinear, .min_rate = -0.2, .last_step = 9},
      {.decay = LrDecay::kLinear, .last_step = 0}};
  for (const ScheduleOptions& options : bad) {
    const Status status = check(options);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().starts_with("learning rate: "));
  }
  CHECK_THAT(check(bad[5]).message(), contains("0.2"));
}
