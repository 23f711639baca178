// What steps on a device took, over the stand-in, whose events have the times that a test gives them.
#include "trainer/step/device_clock.hpp"

#include <atomic>
#include <chrono>
#include <memory>

#include "tests/harness/catch.hpp"
#include "tests/trainer/cuda/stand_in.hpp"

namespace rondo::trainer::device_clock_test {
namespace {

using namespace std::chrono_literals;  // NOLINT: for times

/// Steps that compute nothing.
struct Steps {
  Steps() {
    gpu->now = [this] { return std::chrono::steady_clock::time_point(at.load()); };
    device = std::move(Device::open(0).value());
    clock.emplace(*device, nullptr, Timeline(), false);
  }
  void pass(std::chrono::nanoseconds time) {
    REQUIRE(device->wait().ok());  // the events before have their times
    at = at.load() + time;
  }
  void enqueue(uint64_t number, std::chrono::nanoseconds takes) {
    clock->step_begins(number);
    pass(takes);
    (void)clock->step_ends();
  }
  StepTimes times(uint64_t number, double data_wait_ms = 0) {
    REQUIRE(device->wait().ok());
    return clock->times(number, data_wait_ms, {});
  }

  std::shared_ptr<device::test::FakeGpu> gpu = cuda::testing::make_gpu();
  const device::test::Installed installed{gpu};
  std::atomic<std::chrono::nanoseconds> at{1h};
  std::unique_ptr<Device> device;
  std::optional<DeviceClock> clock;
};

}  // namespace

TEST_CASE("what comes between two steps on a device is no part of a step") {
  Steps steps;
  steps.enqueue(1, 2ms);
  steps.pass(3ms);
  steps.enqueue(2, 4ms);
  CHECK(steps.times(1).step_ms == Approx(2));
  steps.clock->pause();  // before the last step is read, as when a run validates
  const StepTimes second = steps.times(2, 1);
  CHECK(second.step_ms == Approx(3 + 4));
  CHECK(second.data_wait_ms == Approx(1));
  CHECK(second.other_wait_ms == Approx(2));
  steps.pass(1min);
  steps.enqueue(3, 5ms);
  steps.pass(6ms);
  steps.enqueue(4, 7ms);
  const StepTimes third = steps.times(3, 1e9);
  CHECK(third.step_ms == Approx(5));
  CHECK(third.data_wait_ms == 0);
  CHECK(third.other_wait_ms == 0);
  CHECK(steps.times(4).step_ms == Approx(6 + 7));
}

TEST_CASE("a step on a device is as long after hours as after none") {
  Steps steps;
  steps.enqueue(1, 1ms);
  CHECK(steps.times(1).compute_ms == Approx(1));
  steps.pass(30h);  // for data: no pause
  steps.enqueue(2, 1500us);
  CHECK(steps.times(2).compute_ms == Approx(1.5));
}

}  // namespace rondo::trainer::device_clock_test
