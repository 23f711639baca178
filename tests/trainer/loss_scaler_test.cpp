// The loss scale, step by step as PyTorch's GradScaler.
#include "trainer/optim/loss_scaler.hpp"

#include <limits>

#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::trainer;

TEST_CASE("loss scaler: halves and skips after an overflow, doubles after 2000 good steps") {
  LossScaler scaler;
  CHECK(scaler.scale() == 65536);
  for (int i = 0; i < 1999; ++i) REQUIRE(scaler.update(true));
  CHECK(scaler.scale() == 65536);
  CHECK(scaler.update(true));
  CHECK(scaler.scale() == 131072);
  CHECK_FALSE(scaler.update(false));
  CHECK(scaler.scale() == 65536);
  CHECK_FALSE(scaler.update(false));
  CHECK(scaler.scale() == 32768);
  CHECK(scaler.state().skipped_steps == 2);
}

TEST_CASE("loss scaler: an overflow restarts the count of good steps") {
  LossScaler scaler({.initial = 8, .growth = 4, .backoff = 0.25, .growth_interval = 3});
  for (const bool finite : {true, true, false, true, true}) scaler.update(finite);
  CHECK(scaler.scale() == 2);
  scaler.update(true);
  CHECK(scaler.scale() == 8);
  for (int i = 0; i < 3; ++i) scaler.update(true);
  CHECK(scaler.scale() == 32);
}

TEST_CASE("loss scaler: neither grows to infinity nor shrinks to zero") {
  LossScaler scaler({.growth_interval = 1});
  for (int i = 0; i < 300; ++i) scaler.update(true);
  CHECK(scaler.scale() == 0x1p127f);
  for (int i = 0; i < 600; ++i) scaler.update(false);
  CHECK(scaler.scale() == std::numeric_limits<float>::min());
  CHECK(scaler.state().skipped_steps == 600);
}

TEST_CASE("loss scaler: goes on from a saved state") {
  const LossScalerOptions options{.growth_interval = 5};
  LossScaler first(options);
  for (int i = 0; i < 13; ++i) first.update(i != 6);
  LossScaler second(options);
  REQUIRE(second.restore(first.state()).ok());
  for (int i = 0; i < 20; ++i) {
    CHECK(first.update(i % 7 != 0) == second.update(i % 7 != 0));
    CHECK(first.state() == second.state());
  }
}

TEST_CASE("loss scaler: a state that cannot be is refused and changes nothing") {
  LossScaler scaler;
  const LossScalerState bad[] = {{.scale = 0},
                                 {.scale = -2},
                                 {.scale = std::numeric_limits<float>::infinity()},
                                 {.scale = std::numeric_limits<float>::quiet_NaN()},
                                 {.scale = 2, .good_steps = 2000}};
  for (const LossScalerState& state : bad) {
    CHECK(scaler.restore(state).code() == Code::kDataError);
    CHECK(scaler.state() == LossScalerState{});
  }
}
