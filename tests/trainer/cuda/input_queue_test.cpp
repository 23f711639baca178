// What a device gets of batches.
#include "trainer/layers/cuda/input_queue.hpp"

#include <thread>
#include <vector>

#include "tests/trainer/cuda/fake_device.hpp"

namespace rondo::trainer::input_queue_test {

using cuda::BFloat16Bits;
using cuda::InputQueue;
using cuda::testing::FakeDevice;

TEST_CASE("Inputs arrive on the device, with tokens sorted and images rounded") {
  FakeDevice fake;
  InputQueue<BFloat16Bits> queue(
      *fake.device,
      {.samples = 2, .tokens = 3, .symbols = 8, .pixels = 1, .targets = 2, .draws = true});
  const std::vector<int32_t> tokens = {7, 2, 7, 0, 2, 7}, targets = {1, 2, 3, 4};
  const std::vector<float> images = {0.5f, 1.001f};
  const std::vector<uint64_t> ids = {10, 11};
  const Batch batch{2, tokens.data(), images.data(), targets.data(), ids.data()};
  const Inputs<BFloat16Bits> inputs = queue.take(batch, true, 99);
  REQUIRE(fake.device->wait().ok());  // this device's memory is the host's
  const auto numbers = [](const int32_t* from, size_t count) {
    return std::vector<int32_t>(from, from + count);
  };
  CHECK(numbers(inputs.tokens, 6) == tokens);
  CHECK(numbers(inputs.targets, 4) == targets);
  CHECK((numbers(inputs.order, 6) == std::vector<int32_t>{3, 1, 4, 0, 2, 5}));
  CHECK(cuda::widen(inputs.images[0]) == 0.5f);
  CHECK(cuda::widen(inputs.images[1]) == 1);
  CHECK(inputs.keys[1] == sample_key(99, 11));
  const Inputs<BFloat16Bits> evaluated =
      queue.take({1, tokens.data(), images.data(), targets.data(), nullptr}, false, 99);
  CHECK(evaluated.keys == nullptr);
  CHECK(evaluated.order == nullptr);
  const Inputs<BFloat16Bits> nothing = queue.take({0, nullptr, nullptr, nullptr, nullptr}, true, 0);
  CHECK(nothing.order == nullptr);
}

TEST_CASE("A batch waits for the copy of the one that had its memory, not for any other") {
  FakeDevice fake;
  using Queue = InputQueue<float>;
  Queue queue(*fake.device, {.samples = 1});
  DeviceArray<int32_t> seen(*fake.device, Queue::kAhead + 1);
  REQUIRE(fake.device->wait().ok());
  const auto take = [&](int32_t target) {
    const Inputs<float> inputs = queue.take({1, nullptr, nullptr, &target, nullptr}, true, 0);
    fake.device->copy(seen.data() + target, inputs.targets, sizeof target);
  };
  fake.hold();
  for (size_t i = 0; i < Queue::kAhead; ++i) take(static_cast<int32_t>(i));
  std::thread opener([&] { fake.let_go(); });
  take(static_cast<int32_t>(Queue::kAhead));
  opener.join();
  REQUIRE(fake.device->wait().ok());
  for (size_t i = 0; i <= Queue::kAhead; ++i) CHECK(seen.data()[i] == static_cast<int32_t>(i));
}

TEST_CASE("A batch does not wait for a device whose ranks have failed") {
  FakeDevice fake;
  using Queue = InputQueue<float>;
  Queue queue(*fake.device, {.samples = 1});
  REQUIRE(fake.device->wait().ok());
  fake.device->watch([] { return Status(Code::kPeerDied, "rank 1 has died"); });
  fake.hold();
  const int32_t target = 1;
  for (size_t i = 0; i <= Queue::kAhead; ++i) {
    CHECK(fake.device->status().ok());
    (void)queue.take({1, nullptr, nullptr, &target, nullptr}, true, 0);
  }
  CHECK(fake.device->status().code() == Code::kPeerDied);
  fake.let_go();
}

}  // namespace rondo::trainer::input_queue_test
