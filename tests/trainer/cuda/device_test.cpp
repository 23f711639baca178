// The trainer's device, its launches and its products, over the stand-in.
#include "trainer/base/device.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/trainer/cuda/stand_in.hpp"
#include "trainer/base/device_graph.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/launch.hpp"
#include "trainer/layers/cuda/products.hpp"
#include "trainer/layers/cuda/rows.hpp"

namespace rondo::trainer::device_test {
namespace {

using cuda::testing::make_gpu;
using rondo::device::test::Installed;

/// Copies of `values` on the device.
DeviceArray<float> on_device(Device& device, const std::vector<float>& values) {
  DeviceArray<float> memory(device, values.size());
  device.copy(memory.data(), values.data(), values.size() * sizeof(float));
  REQUIRE(device.wait().ok());  // before the values go
  return memory;
}

std::vector<float> on_host(Device& device, DeviceArray<float>& memory) {
  std::vector<float> values(memory.count());
  device.copy(values.data(), memory.data(), memory.bytes());
  REQUIRE(device.wait().ok());
  return values;
}

std::vector<float> counted(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

}  // namespace

TEST_CASE("A device's calls take effect in the order of its stream") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  auto device = Device::open(0);
  REQUIRE(device.ok());
  DeviceArray<float> y = on_device(**device, {-1, 2, -3, 4});
  DeviceArray<float> bias = on_device(**device, {1, 1, 1, 1});
  gpu->hold((*device)->stream());
  cuda::launch(**device, "bias", cuda::AddBiasKernel<float, 1>{1, 4, bias.data(), true, y.data()});
  CHECK(y.data()[1] == 2);  // the stand-in's memory is the host's
  gpu->let_go((*device)->stream());
  CHECK((on_host(**device, y) == std::vector<float>{0, 3, 0, 5}));
}

TEMPLATE_TEST_CASE("Memory is freed when the stream has passed what uses it", "",
                   DeviceArray<float>, PinnedArray<float>) {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  auto device = Device::open(0);
  REQUIRE(device.ok());
  std::atomic<bool> passed{false};
  {
    TestType memory(**device, 4);
    gpu->enqueue((*device)->stream(), [&passed, data = memory.data()] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::fill_n(data, 4, 1.0f);
      passed = true;
    });
  }
  CHECK(passed);
}

TEST_CASE("Products of every form") {
  const Installed installed(make_gpu());
  auto device = Device::open(0);
  REQUIRE(device.ok());
  auto products = cuda::open_products(**device);
  REQUIRE(products.ok());
  constexpr size_t kM = 3, kN = 5, kK = 4;
  const std::vector<float> a = counted(kM * kK), b = counted(kK * kN), bias = {-200, 1, -900, 3, 4};
  DeviceArray<float> da = on_device(**device, a), db = on_device(**device, b),
                     dbias = on_device(**device, bias);
  for (const bool a_turned : {false, true}) {
    for (const bool b_turned : {false, true}) {
      for (const bool accumulate : {false, true}) {
        INFO(a_turned << b_turned << accumulate);
        DeviceArray<float> c = on_device(**device, counted(kM * kN));
        (*products)->multiply(DataType::kFloat32, {.m = kM,
                                                   .n = kN,
                                                   .k = kK,
                                                   .a = {da.data(), a_turned ? kM : kK, a_turned},
                                                   .b = {db.data(), b_turned ? kK : kN, b_turned},
                                                   .c = c.data(),
                                                   .c_stride = kN,
                                                   .accumulate = accumulate,
                                                   .bias = accumulate ? nullptr : dbias.data()});
        std::vector<float> wanted = counted(kM * kN);
        for (size_t i = 0; i < kM; ++i) {
          for (size_t j = 0; j < kN; ++j) {
            float sum = accumulate ? wanted[i * kN + j] : bias[j];
            for (size_t k = 0; k < kK; ++k) {
              sum += a[a_turned ? k * kM + i : i * kK + k] * b[b_turned ? j * kK + k : k * kN + j];
            }
            wanted[i * kN + j] = sum;
          }
        }
        CHECK((on_host(**device, c) == wanted));
      }
    }
  }
}

TEST_CASE("The first failure is the device's, and nothing follows it") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  CHECK(Device::open(1).status().code() == Code::kUnavailable);
  auto device = Device::open(0);
  REQUIRE(device.ok());
  DeviceArray<float> y = on_device(**device, {-1, 2});
  gpu->fail_at = gpu->calls.load();
  cuda::launch(**device, "relu's gradient",
               cuda::ReluBackwardKernel<float, 1>{2, y.data(), y.data()});
  CHECK(device::test::says((*device)->status(), "relu's gradient, 1 x 1 x 1 blocks"));
  gpu->fail_at = -1;
  (*device)->clear(y.data(), y.bytes());
  CHECK_FALSE((*device)->wait().ok());
  CHECK(y.data()[1] == 2);
}

TEST_CASE("The stand-in can refuse to launch a kernel that its device has not loaded") {
  const auto gpu = make_gpu(2);
  gpu->must_be_loaded = true;
  const Installed installed(gpu);
  for (const int number : {0, 1}) {
    auto device = Device::open(number);
    REQUIRE(device.ok());
    DeviceArray<float> y = on_device(**device, {1, 2, 3, 4});
    const cuda::ScaleKernel<float> scale{4, 2, y.data()};
    if (number == 0) REQUIRE(gpu->load(cuda::kernel_entry<cuda::ScaleKernel<float>>()).ok());
    cuda::launch(**device, "scale", scale);
    CHECK((*device)->status().ok() == (number == 0));
    if (number == 1) CHECK(device::test::says((*device)->status(), "scale"));
  }
}

TEST_CASE("Devices of one GPU launch a kernel with as much shared memory as each needs, in turns") {
  const Installed installed(make_gpu());
  auto first = Device::open(0), second = Device::open(0);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  const int32_t target = 0;
  DeviceArray<float> logits(**first, 20000);
  DeviceArray<double> loss(**first, 1);
  // 80 KB, 60 KB, and none beyond what every launch may have.
  for (const size_t classes : {20000, 15000, 20000, 100, 20000}) {
    Device& device = classes == 20000 ? **first : **second;
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
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  auto device = Device::open(0);
  REQUIRE(device.ok());
  gpu->fail_at = gpu->calls.load();
  CHECK_THROWS_AS(DeviceArray<float>(**device, 10), std::bad_alloc);
  CHECK_FALSE((*device)->status().ok());
}

TEST_CASE("A capture ends however what it captures ends") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  auto device = Device::open(0);
  REQUIRE(device.ok());
  DeviceArray<float> y = on_device(**device, {-1, 2});
  const size_t alive = gpu->alive();
  const auto clear = [&] {
    (*device)->clear(y.data(), y.bytes());
    return Status();
  };
  CHECK_THROWS_AS(DeviceGraph::capture(**device,
                                       [&]() -> Status {
                                         (void)clear();
                                         throw std::bad_alloc();
                                       }),
                  std::bad_alloc);
  CHECK(DeviceGraph::capture(**device,
                             [&] {
                               (void)clear();
                               return Status(Code::kAborted, "not today");
                             })
            .status()
            .code() == Code::kAborted);
  CHECK(*gpu->capture_of((*device)->stream()) == 0);
  CHECK(gpu->alive() == alive);
  REQUIRE((*device)->wait().ok());
  CHECK(y.data()[1] == 2);

  auto graph = DeviceGraph::capture(**device, clear);
  REQUIRE(graph.ok());
  REQUIRE((*device)->wait().ok());
  CHECK(y.data()[1] == 2);
  graph->launch();
  CHECK((on_host(**device, y) == std::vector<float>{0, 0}));
}

}  // namespace rondo::trainer::device_test
