// The layers of images on a GPU, walked on the host.
#include "tests/trainer/cuda/values.hpp"
#include "trainer/layers/cuda/batch_norm.hpp"
#include "trainer/layers/cuda/pooling.hpp"
#include "trainer/layers/host/batch_norm.hpp"
#include "trainer/layers/host/pooling.hpp"

namespace rondo::trainer::cuda_image_layers_test {

using cuda::testing::as;
using cuda::testing::check_close;
using cuda::testing::in_every_order;
using cuda::testing::noise;
using cuda::testing::Order;
using cuda::testing::unit;
using cuda::testing::Values;
using cuda::testing::walk;
using cuda::testing::wide;

namespace {

/// f(T{}) for each type.
template <class F>
void for_each_type(const F& f) {
  f(double{});
  f(float{});
  f(cuda::BFloat16Bits{});
}

/// sums[channels], and `gradient` if there is one, from a kernel's partial sums.
template <class T>
Values add_channels(const cuda::ChannelSlice& slice, const double* partial, bool accumulate,
                    T* gradient) {
  Values sums(slice.channels);
  walk(cuda::AddChannelsKernel<T>{slice.slices(), slice.channels, partial, sums.data(), accumulate,
                                  gradient});
  return sums;
}

/// A batch norm with its statistics on the device.
template <class T>
struct Norm {
  BatchNormShape shape;
  std::vector<T> x;
  double count;
  Values mean, squares, inverse;

  Norm(const BatchNormShape& of, const std::vector<T>& input) : shape(of), x(input) {
    count = static_cast<double>(shape.samples * shape.pixels);
    const Values sums = measured(nullptr);
    mean.resize(shape.channels);
    inverse.resize(shape.channels);
    walk(cuda::BatchNormFinishKernel{shape.channels, &count, sums.data(), false, 0, mean.data()});
    squares = measured(mean.data());
    walk(cuda::BatchNormFinishKernel{shape.channels, &count, squares.data(), true, shape.epsilon,
                                     inverse.data()});
  }
  cuda::ChannelSlice slice() const { return {shape.samples, shape.channels, shape.pixels}; }
  Values measured(const double* around) const {
    return in_every_order<double>([&](Order order) {
      Values partial(slice().slices() * shape.channels);
      walk(cuda::ChannelSumsKernel<T>{slice(), x.data(), around, partial.data()}, order);
      return add_channels<T>(slice(), partial.data(), false, nullptr);
    });
  }
};

}  // namespace

TEST_CASE("cuda batch norm: statistics, forward and backward as the host's, also of no samples") {
  for_each_type([](auto type) {
    using T = decltype(type);
    for (const size_t samples : {size_t{0}, size_t{1}, size_t{5}, size_t{35}}) {
      const BatchNormShape shape{.samples = samples, .channels = 3, .pixels = 49};
      const size_t count = samples * shape.channels * shape.pixels;
      Values around = noise(count, 1);
      for (double& value : around) value += 3;  // a mean that is large beside the deviation
      const std::vector<T> x = as<T>(around), dy = as<T>(noise(count, 2)),
                           weight = as<T>(noise(3, 3)), bias = as<T>(noise(3, 4));
      Values in = wide(x), gradient = wide(dy), gain = wide(weight), shift = wide(bias);
      BatchStatistics expected(3);
      REQUIRE(batch_norm_measure<double>(shape, in.data(), {}, expected).ok());
      Values y(count), dweight = wide(weight), dbias = wide(bias);
      batch_norm_forward<double>(shape, expected, {gain.data(), shift.data()}, in.data(), true,
                                 y.data());
      batch_norm_backward_parameters<double>(shape, expected, gradient.data(), in.data(), true,
                                             {dweight.data(), dbias.data()});
      batch_norm_backward_input<double>(shape, expected, gain.data(), in.data(), gradient.data());

      const Norm<T> norm(shape, x);
      check_close(norm.mean, expected.mean, 1e-12);
      check_close(norm.squares, expected.squares, 1e-12);
      check_close(norm.inverse, expected.inverse_deviation, 1e-12);
      std::vector<T> out(count);
      walk(cuda::BatchNormForwardKernel<T>{shape,
                                           norm.mean.data(),
                                           norm.inverse.data(),
                                           {weight.data(), bias.data()},
                                           x.data(),
                                           true,
                                           out.data()});
      check_close(wide(out), y, 16 * unit<T>());

      Values partial(2 * norm.slice().slices() * 3);
      walk(cuda::BatchNormGradientSumsKernel<T>{norm.slice(), dy.data(), x.data(), norm.mean.data(),
                                                norm.inverse.data(), partial.data()},
           Order::kBackwards);
      std::vector<T> to_weight = weight, to_bias = bias;
      Values sums = add_channels<T>(norm.slice(), partial.data(), true, to_bias.data());
      const Values products = add_channels<T>(
          norm.slice(), partial.data() + norm.slice().slices() * 3, true, to_weight.data());
      sums.insert(sums.end(), products.begin(), products.end());
      check_close(sums, expected.gradient_sums, 1e-10);
      check_close(wide(to_weight), dweight, unit<T>() + 1e-12);
      check_close(wide(to_bias), dbias, unit<T>() + 1e-12);
      std::vector<T> dx = dy;
      walk(cuda::BatchNormBackwardInputKernel<T>{shape, &norm.count, norm.mean.data(),
                                                 norm.inverse.data(), sums.data(), weight.data(),
                                                 x.data(), dx.data()});
      check_close(wide(dx), gradient, 32 * unit<T>());
    }
  });
}

TEST_CASE("cuda pooling: as the host's, with odd sizes, equals and NaN") {
  for_each_type([](auto type) {
    using T = decltype(type);
    for (const auto& [height, width] :
         {std::pair<size_t, size_t>{4, 6}, {5, 7}, {1, 3}, {2, 2}, {9, 4}}) {
      const PoolShape shape{.planes = 3, .height = height, .width = width};
      Values values = noise(3 * height * width, 1);
      for (size_t i = 0; i < values.size(); i += 3) values[i] = 0.5;  // equals
      values[values.size() / 2] = std::nan("");
      const std::vector<T> x = as<T>(values);
      Values expected(shape.out_count());
      std::vector<uint8_t> expected_which(shape.out_count()), which(shape.out_count());
      max_pool_forward<double>(shape, wide(x).data(), expected.data(), expected_which.data());
      std::vector<T> y(shape.out_count());
      walk(cuda::MaxPoolForwardKernel<T>{shape, x.data(), y.data(), which.data()});
      REQUIRE(which == expected_which);
      for (size_t i = 0; i < y.size(); ++i) {
        const double got = cuda::widen(y[i]);
        REQUIRE((got == expected[i] || (std::isnan(got) && std::isnan(expected[i]))));
      }
      const std::vector<T> dy = as<T>(noise(y.size(), 2));
      Values expected_dx(x.size());
      max_pool_backward<double>(shape, wide(dy).data(), which.data(), expected_dx.data());
      std::vector<T> dx = x;
      walk(cuda::MaxPoolBackwardKernel<T>{shape, dy.data(), which.data(), dx.data()});
      REQUIRE(wide(dx) == expected_dx);
    }
    const std::vector<T> x = as<T>(noise(11 * 49, 1)), dy = as<T>(noise(11, 2));
    Values average(11), spread(11 * 49);
    average_pool_forward<double>(11, 49, wide(x).data(), average.data());
    average_pool_backward<double>(11, 49, wide(dy).data(), spread.data());
    std::vector<T> y(11), dx(11 * 49);
    walk(cuda::AveragePoolForwardKernel<T>{11, 49, x.data(), y.data()}, Order::kBackwards);
    walk(cuda::AveragePoolBackwardKernel<T>{11, 49, dy.data(), dx.data()});
    check_close(wide(y), average, unit<T>());
    check_close(wide(dx), spread, unit<T>());
  });
}

}  // namespace rondo::trainer::cuda_image_layers_test
