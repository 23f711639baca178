// The trainer's device, its launches and its graphs, over the fake CUDA runtime.
#include "trainer/base/device.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "tests/trainer/cuda/fake_device.hpp"
#include "trainer/base/device_graph.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/launch.hpp"
#include "trainer/layers/cuda/rows.hpp"

namespace rondo::trainer::device_test {

using cuda::testing::FakeDevice;
using rondo::device::test::says;
using Floats = std::vector<float>;

TEST_CASE("A device's calls take effect in the order of its stream") {
  FakeDevice fake;
  DeviceArray<float> y = fake.put<float>({-1, 2, -3, 4}), bias = fake.put<float>({1, 1, 1, 1});
  fake.hold();
  cuda::launch(*fake.device, "bias",
               cuda::AddBiasKernel<float, 1>{1, 4, bias.data(), true, y.data()});
  CHECK(y.data()[1] == 2);  // this device's memory is the host's
  fake.let_go();
  CHECK(fake.get(y) == Floats{0, 3, 0, 5});
}

TEMPLATE_TEST_CASE("Memory is freed when the stream has passed what uses it", "",
                   DeviceArray<float>, PinnedArray<float>) {
  FakeDevice fake;
  std::atomic<bool> passed{false};
  {
    TestType memory(*fake.device, 4);
    fake.gpu->enqueue(fake.device->stream(), [&passed, data = memory.data()] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::fill_n(data, 4, 1.0f);
      passed = true;
    });
  }
  CHECK(passed);
}

TEST_CASE("The first failure is the device's, and nothing follows it") {
  FakeDevice fake;
  CHECK(Device::open(1).status().code() == Code::kUnavailable);
  DeviceArray<float> y = fake.put<float>({-1, 2});
  fake.gpu->fail_at = fake.gpu->calls.load();
  cuda::launch(*fake.device, "relu's gradient",
               cuda::ReluBackwardKernel<float, 1>{2, y.data(), y.data()});
  CHECK(says(fake.device->status(), "relu's gradient, 1 x 1 x 1 blocks"));
  fake.gpu->fail_at = -1;
  fake.device->clear(y.data(), y.bytes());
  CHECK_FALSE(fake.device->wait().ok());
  CHECK(y.data()[1] == 2);
}

TEST_CASE("Devices of one GPU launch a kernel with as much shared memory as each needs, in turns") {
  FakeDevice first;
  const auto second = FakeDevice::open();
  const int32_t target = 0;
  DeviceArray<float> logits(*first.device, 20000);
  DeviceArray<double> loss(*first.device, 1);
  // 80 KB, 60 KB, and none beyond what every launch may have.
  for (const size_t classes : {20000, 15000, 20000, 100, 20000}) {
    Device& device = classes == 20000 ? *first.device : *second;
    const cuda::SoftmaxCrossEntropyKernel<float> kernel{
        {.rows = 1, .classes = classes, .stride = classes},
        &target,
        false,
        logits.data(),
        loss.data()};
    CHECK((kernel.shared_bytes() > size_t{48} << 10) == (classes > 100));
    cuda::launch(device, "cross-entropy", kernel);
    INFO(device.status().message());
    REQUIRE(device.wait().ok());
  }
}

TEST_CASE("Memory that cannot be had is bad_alloc, with its reason") {
  FakeDevice fake;
  fake.gpu->fail_at = fake.gpu->calls.load();
  CHECK_THROWS_AS(DeviceArray<float>(*fake.device, 10), std::bad_alloc);
  CHECK_FALSE(fake.device->status().ok());
}

TEST_CASE("A capture ends however what it captures ends") {
  FakeDevice fake;
  Device& device = *fake.device;
  DeviceArray<float> y = fake.put<float>({-1, 2});
  const size_t alive = fake.gpu->alive();
  const auto clear = [&] {
    device.clear(y.data(), y.bytes());
    return Status();
  };
  CHECK_THROWS_AS(DeviceGraph::capture(device,
                                       [&]() -> Status {
                                         (void)clear();
                                         throw std::bad_alloc();
                                       }),
                  std::bad_alloc);
  const auto refused = DeviceGraph::capture(device, [&] {
    (void)clear();
    return Status(Code::kAborted, "not today");
  });
  CHECK(refused.status().code() == Code::kAborted);
  CHECK(*fake.gpu->capture_of(device.stream()) == 0);
  CHECK(fake.gpu->alive() == alive);
  CHECK(fake.get(y) == Floats{-1, 2});

  auto graph = DeviceGraph::capture(device, clear);
  REQUIRE(graph.ok());
  CHECK(fake.get(y) == Floats{-1, 2});
  graph->launch();
  CHECK(fake.get(y) == Floats{0, 0});
}

}  // namespace rondo::trainer::device_test
