// A device of the fake CUDA runtime (stand_in.hpp), and memory there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/trainer/cuda/stand_in.hpp"
#include "trainer/base/device.hpp"

namespace rondo::trainer::cuda::testing {

struct FakeDevice {
  using FakeGpu = rondo::device::test::FakeGpu;

  explicit FakeDevice(std::shared_ptr<FakeGpu> its_gpu = make_gpu())
      : gpu(std::move(its_gpu)), installed(gpu), device(open()) {}

  static std::unique_ptr<Device> open() {
    auto opened = Device::open(0);
    REQUIRE(opened.ok());
    return std::move(*opened);
  }
  template <class Number>
  DeviceArray<Number> put(const std::vector<Number>& numbers) {
    DeviceArray<Number> array(*device, numbers.size());
    device->copy(array.data(), numbers.data(), array.bytes());
    REQUIRE(device->wait().ok());  // before the numbers go
    return array;
  }
  template <class Number>
  std::vector<Number> get(const DeviceArray<Number>& array) {
    REQUIRE(device->wait().ok());  // this device's memory is the host's
    return {array.data(), array.data() + array.count()};
  }
  /// Keeps the stream from running what is enqueued, until it is let go.
  void hold() { gpu->hold(device->stream()); }
  void let_go() { gpu->let_go(device->stream()); }

  std::shared_ptr<FakeGpu> gpu;
  rondo::device::test::Installed installed;
  std::unique_ptr<Device> device;
};

}  // namespace rondo::trainer::cuda::testing
