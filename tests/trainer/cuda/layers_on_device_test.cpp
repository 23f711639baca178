// What the layers on a device do that no model of a test is large enough for.
#include "trainer/layers/cuda/layers_on_device.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/trainer/cuda/fake_device.hpp"
#include "tests/trainer/cuda/values.hpp"
#include "trainer/layers/cuda/product_parts.hpp"
#include "trainer/layers/host/layers_on_host.hpp"

namespace rondo::trainer::layers_on_device_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

/// A device with layers.
struct World : FakeDevice {
  template <class T = float>
  LayersOnDevice<T> layers() {
    auto products = open_products(*device);
    REQUIRE(products.ok());
    return {*device, std::move(*products)};
  }
};

}  // namespace

TEST_CASE("products in two parts: the same numbers, and rows of a multiple of 16 bytes in one") {
  using T = BFloat16Bits;
  World world;
  auto products = open_products(*world.device);
  REQUIRE(products.ok());
  // All numbers are -1, 0 and 1, so that every order of sums has the same result.
  const auto signs = [&](size_t count, uint64_t key) {
    Values values = noise(count, key);
    for (double& each : values) each = std::round(1.4 * each);
    return world.put(as<T>(values));
  };
  constexpr size_t kStride = 320;  // of all matrices
  DeviceArray<T> a = signs(kStride * kStride, 1), b = signs(kStride * kStride, 2),
                 bias = signs(kStride, 3);
  const auto parts_of = [&](const DeviceProduct& product, size_t worth = 0) {
    return cuda::parts_of(DataType::kBFloat16, product, worth);
  };
  const auto run = [&](std::vector<DeviceProduct> parts) {
    DeviceArray<T> c = signs(kStride * kStride, 4);
    for (DeviceProduct& part : parts) {  // which are made of a product into no memory
      part.c = c.data() + reinterpret_cast<uintptr_t>(part.c) / sizeof(T);
      (*products)->multiply(DataType::kBFloat16, part);
    }
    return wide(world.get(c));
  };
  for (const bool a_transposed : {false, true}) {
    for (const bool b_transposed : {false, true}) {
      for (const bool accumulate : {false, true}) {
        for (const size_t odd : {0, 1, 2, 3}) {  // which of n, m and k
          INFO(a_transposed << b_transposed << accumulate << odd);
          const DeviceProduct whole{
              .m = odd == 2 ? size_t{257} : 264,
              .n = odd == 1 ? size_t{257} : 264,
              .k = odd == 3 ? size_t{257} : 264,
              .a = {.data = a.data(), .stride = kStride, .transposed = a_transposed},
              .b = {.data = b.data(), .stride = kStride, .transposed = b_transposed},
              .c = nullptr,
              .c_stride = kStride,
              .accumulate = accumulate,
              .bias = accumulate ? nullptr : bias.data()};
          const std::vector<DeviceProduct> parts = parts_of(whole);
          const bool lies_odd = odd == 1 || (odd == 2 && a_transposed) ||
                                (odd == 3 && (!a_transposed || b_transposed) && !accumulate);
          CHECK(parts.size() == (lies_odd ? 2u : 1u));
          if (lies_odd) {
            const DeviceProduct& most = parts[odd == 3 ? 1 : 0];
            CHECK((odd == 1 ? most.n : odd == 2 ? most.m : most.k) == 256);
          }
          CHECK(run(parts) == run({whole}));
          CHECK(parts_of(whole, size_t{1} << 32).size() == 1);  // too small to be worth it
        }
      }
    }
  }
}

TEST_CASE("layers on a device: images that a kernel cannot count are refused") {
  World world;
  auto layers = world.layers();
  const size_t planes = (size_t{1} << 31) / 16;
  layers.max_pool_backward({planes, 4, 4}, nullptr, nullptr, nullptr);
  CHECK(world.device->status().code() == Code::kInvalidArgument);
  CHECK(rondo::device::test::says(world.device->status(), "2147483648 elements on a rank"));

  World other;
  auto more = other.layers();
  const ConvolutionShape shape{.samples = size_t{1} << 23,
                               .in_channels = 1,
                               .height = 4,
                               .width = 4,
                               .out_channels = 16,
                               .kernel = 3,
                               .padding = 1};
  more.convolution_forward(shape, nullptr, nullptr, nullptr, false, nullptr, nullptr);
  CHECK(rondo::device::test::says(other.device->status(), "2147483648 elements on a rank"));
}

TEST_CASE(
    "layers on a device: convolutions are the host's, of fewer samples than were expected too") {
  const auto check = []<class T>(T) {
    for (const size_t out_channels :
         {size_t{3}, size_t{20}, size_t{40}}) {  // in tiles of each size
      const ConvolutionShape expected{.samples = 5,
                                      .in_channels = 2,
                                      .height = 14,
                                      .width = 15,
                                      .out_channels = out_channels,
                                      .kernel = 3,
                                      .stride = 2,
                                      .padding = 1};
      World world;
      auto layers = world.layers<T>();
      DeviceArray<T> scratch(*world.device, layers.convolution_scratch(expected));
      CHECK(scratch.count() == 0);
      for (const size_t samples : {size_t{5}, size_t{1}, size_t{0}}) {
        INFO(out_channels << " channels, " << samples << " samples");
        ConvolutionShape shape = expected;
        shape.samples = samples;
        const std::vector<T> x = as<T>(noise(samples * shape.in_size(), 1)),
                             w = as<T>(noise(out_channels * shape.patch(), 2)),
                             bias = as<T>(noise(out_channels, 3)),
                             dy = as<T>(noise(samples * shape.out_size(), 4)),
                             dw = as<T>(noise(w.size(), 5));
        LayersOnHost<double> host;
        Values columns(host.convolution_scratch(shape)), y(dy.size()), dx(x.size());
        const double bound = unit<T>() + 1e-5;
        DeviceArray<T> x_on = world.put(x), w_on = world.put(w), bias_on = world.put(bias),
                       dy_on = world.put(dy), dw_on = world.put(dw);
        DeviceArray<T> y_on(*world.device, dy.size()), dx_on(*world.device, x.size());
        for (const bool biased : {false, true}) {
          host.convolution_forward(shape, wide(x).data(), wide(w).data(),
                                   biased ? wide(bias).data() : nullptr, biased, columns.data(),
                                   y.data());
          layers.convolution_forward(shape, x_on.data(), w_on.data(),
                                     biased ? bias_on.data() : nullptr, biased, scratch.data(),
                                     y_on.data());
          check_close(world.get(y_on), y, bound);
        }
        host.convolution_backward_input(shape, wide(dy).data(), wide(w).data(), columns.data(),
                                        dx.data());
        layers.convolution_backward_input(shape, dy_on.data(), w_on.data(), scratch.data(),
                                          dx_on.data());
        check_close(world.get(dx_on), dx, bound);
        for (const bool accumulate : {true, false}) {
          Values sum = wide(dw);
          host.convolution_backward_weight(shape, wide(dy).data(), wide(x).data(), columns.data(),
                                           accumulate, sum.data());
          layers.convolution_backward_weight(shape, dy_on.data(), x_on.data(), scratch.data(),
                                             accumulate, dw_on.data());
          check_close(world.get(dw_on), sum, bound);
        }
      }
    }
  };
  check(float{});
  check(BFloat16Bits{});
}

TEST_CASE("layers on a device: hits are the host's, with ties, and none where a row is NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> rows = {0.5f, 0.5f, 0.2f, 0.5f, 0.5f, 0.2f, 0.1f, 0.2f, 0.7f,      nan, nan,
                             nan,  nan,  0.5f, 0.2f, 0.3f, 0.4f, 0.3f, 0.1f, kInfinity, 0.1f};
  const std::vector<int32_t> targets = {0, 1, 2, 0, 1, 0, 1};
  const LogitsShape shape{.rows = 7, .classes = 3, .stride = 3};
  LayersOnHost<float> host;
  double expected = 100;
  host.count_correct(shape, targets.data(), rows.data(), &expected);
  World world;
  auto layers = world.layers();
  layers.expect({.samples = 7});
  DeviceArray<float> on = world.put(rows);
  DeviceArray<int32_t> targets_on = world.put(targets);
  DeviceArray<double> correct = world.put<double>({100});
  layers.count_correct(shape, targets_on.data(), on.data(), correct.data());
  CHECK(world.get(correct)[0] == expected);
  CHECK(expected == 102);  // the first and the third
  layers.count_correct({.rows = 0, .classes = 3, .stride = 3}, targets_on.data(), on.data(),
                       correct.data());
  CHECK(world.get(correct)[0] == 102);
}

TEST_CASE("layers on a device: rows of logits have padding, which no layer reads") {
  const auto check = []<class T>(T) {
    constexpr size_t kRows = 9, kIn = 16, kClasses = 37;
    const double bound = 1e-5 + 2 * unit<T>();
    World world;
    auto layers = world.layers<T>();
    const size_t stride = layers.row_stride(kClasses);
    REQUIRE(stride > kClasses);
    CHECK(stride * sizeof(T) % 128 == 0);
    CHECK(layers.row_stride(stride) == stride);
    layers.expect({.samples = kRows});
    layers.expect_sums(kRows, kClasses);
    const LinearShape padded{.rows = kRows, .in = kIn, .out = kClasses, .stride = stride};
    const LinearShape plain{.rows = kRows, .in = kIn, .out = kClasses};
    const LogitsShape logits{kRows, kClasses, stride}, on_host{kRows, kClasses, kClasses};
    std::vector<int32_t> targets;
    for (size_t r = 0; r < kRows; ++r) targets.push_back(static_cast<int32_t>(mix(r) % kClasses));
    const std::vector<T> x = as<T>(noise(kRows * kIn, 1)), w = as<T>(noise(kClasses * kIn, 2)),
                         bias = as<T>(noise(kClasses, 3));
    DeviceArray<T> x_on = world.put(x), w_on = world.put(w), bias_on = world.put(bias);
    DeviceArray<int32_t> targets_on = world.put(targets);
    DeviceArray<double> sums = world.put<double>({0, 0});
    DeviceArray<T> y = world.put(as<T>(Values(kRows * stride, std::nan(""))));
    // The classes of y, whose padding has to be zero and is NaN afterwards.
    const auto take = [&](bool zero) {
      std::vector<T> all = world.get(y);
      Values classes;
      for (size_t i = 0; i < all.size(); ++i) {
        const double value = widen(all[i]);
        if (i % stride < kClasses) {
          classes.push_back(value);
        } else {
          if (zero) REQUIRE(value == 0);
          all[i] = as<T>({std::nan("")})[0];
        }
      }
      world.device->copy(y.data(), all.data(), y.bytes());
      REQUIRE(world.device->wait().ok());
      return classes;
    };

    LayersOnHost<double> host;
    for (const bool training : {false, true}) {
      Values expected(kRows * kClasses);
      host.linear_forward(plain, wide(x).data(), wide(w).data(), wide(bias).data(), false,
                          expected.data());
      layers.linear_forward(padded, x_on.data(), w_on.data(), bias_on.data(), false, y.data());
      const Values product = take(false);
      check_close(product, expected, bound);
      expected = product;
      double loss = 0, correct = 0;
      host.softmax_cross_entropy_forward(on_host, targets.data(), training, expected.data(), &loss);
      world.device->clear(sums.data(), sums.bytes());
      layers.softmax_cross_entropy_forward(logits, targets_on.data(), training, y.data(),
                                           sums.data());
      if (!training) {
        check_close(take(true), expected, bound);
        host.count_correct(on_host, targets.data(), expected.data(), &correct);
        layers.count_correct(logits, targets_on.data(), y.data(), sums.data() + 1);
      }
      CHECK(world.get(sums)[0] == Approx(loss).epsilon(1e-5));
      CHECK(world.get(sums)[1] == correct);
      if (!training) continue;
      host.softmax_cross_entropy_backward(on_host, targets.data(), 1, expected.data());
      layers.softmax_cross_entropy_backward(logits, targets_on.data(), 1, y.data());
      const std::vector<T> before = world.get(y);
      layers.softmax_cross_entropy_backward(logits, targets_on.data(), 0.5, y.data());
      for (double& each : expected) each /= 2;
      const Values dy = take(true);
      check_close(dy, expected, bound);
      for (size_t i = 0; i < dy.size(); ++i) {  // written by forward, and left as it is for 1
        REQUIRE(dy[i] == 0.5 * widen(before[i / kClasses * stride + i % kClasses]));
      }

      Values dx(kRows * kIn), dw(kClasses * kIn), dbias(kClasses);
      host.multiply_input_gradient(plain, dy.data(), wide(w).data(), dx.data());
      host.multiply_weight_gradient(plain, {.first = 3, .count = kClasses - 3}, dy.data(),
                                    wide(x).data(), dw.data(), false);
      host.linear_backward_bias(plain, dy.data(), false, dbias.data());
      DeviceArray<T> dx_on(*world.device, dx.size()), dw_on(*world.device, dw.size()),
          dbias_on(*world.device, kClasses);
      layers.multiply_input_gradient(padded, y.data(), w_on.data(), dx_on.data());
      layers.multiply_weight_gradient(padded, {.first = 3, .count = kClasses - 3}, y.data(),
                                      x_on.data(), dw_on.data(), false);
      layers.linear_backward_bias(padded, y.data(), false, dbias_on.data());
      check_close(world.get(dx_on), dx, bound);
      check_close(world.get(dw_on), dw, bound);
      check_close(world.get(dbias_on), dbias, bound);
    }
  };
  check(float{});
  check(BFloat16Bits{});
}

TEST_CASE(
    "layers on a device: more batches than a slice has rows, and pointers that are no pack's") {
  constexpr size_t kRows = 600, kWidth = 8;
  const std::vector<float> x = as<float>(noise(kRows * kWidth + 1, 1));
  World world;
  auto layers = world.layers();
  layers.expect_sums(kRows, kWidth);
  DeviceArray<float> on = world.put(x), sums = world.put(std::vector<float>(kWidth, 1));
  for (const size_t offset : {0, 1}) {
    Values expected(kWidth, 1);
    rows_kernels<double>().add_columns(kRows, kWidth, wide(x).data() + offset, expected.data());
    for (double& sum : expected) sum -= offset == 0 ? 0 : 1;  // not accumulated then
    layers.linear_backward_bias({.rows = kRows, .in = 0, .out = kWidth}, on.data() + offset,
                                offset == 0, sums.data());
    check_close(world.get(sums), expected, 1e-5);
  }
}

TEST_CASE("layers on a device: a linear layer with ReLU leaves a NaN one") {
  World world;
  auto layers = world.layers();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<float> x = world.put<float>({1, 2, nan, 1}),
                           w = world.put<float>({1, 1, -1, 0}), bias = world.put<float>({-5, 3});
  DeviceArray<float> y(*world.device, 4);
  layers.linear_forward({.rows = 2, .in = 2, .out = 2}, x.data(), w.data(), bias.data(), true,
                        y.data());
  const std::vector<float> got = world.get(y);
  CHECK(got[0] == 0);  // 3 - 5
  CHECK(got[1] == 2);  // -1 + 3
  CHECK(std::isnan(got[2]));
  CHECK(std::isnan(got[3]));
}

}  // namespace rondo::trainer::layers_on_device_test
