// The layers of images on a GPU, walked on the host.
#include "tests/trainer/cuda/values.hpp"
#include "trainer/layers/cuda/batch_norm.hpp"
#include "trainer/layers/cuda/pooling.hpp"
#include "trainer/layers/host/batch_norm.hpp"
#include "trainer/layers/host/pooling.hpp"

namespace rondo::trainer::cuda_image_layers_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

/// sums[channels], and `gradient` if there is one, from a kernel's partial sums.
template <class T>
Values add_channels(const ChannelSlice& slice, const double* partial, bool accumulate,
                    T* gradient) {
  Values sums(slice.channels);
  walk_of<AddChannelsKernel<T>>(slice.slices(), slice.channels, partial, sums, accumulate,
                                gradient);
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
    walk(BatchNormFinishKernel{shape.channels, &count, sums.data(), false, 0, mean.data()});
    squares = measured(mean.data());
    walk(BatchNormFinishKernel{shape.channels, &count, squares.data(), true, shape.epsilon,
                               inverse.data()});
  }
  ChannelSlice slice() const { return {shape.samples, shape.channels, shape.pixels}; }
  Values measured(const double* around) const {
    return in_every_order<double>([&](Order order) {
      Values partial(slice().slices() * shape.channels);
      walk(ChannelSumsKernel<T>{slice(), x.data(), around, partial.data()}, order);
      return add_channels<T>(slice(), partial.data(), false, nullptr);
    });
  }
};

}  // namespace

TEST_CASE("cuda batch norm: statistics, forward and backward as the host's, also of no samples") {
  for_each_type([]<class T>(T) {
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
      walk_of<BatchNormForwardKernel<T>>(shape, norm.mean, norm.inverse,
                                         BatchNormParameters<const T>{weight.data(), bias.data()},
                                         x, true, out);
      check_close(out, y, 16 * unit<T>());

      Values partial(2 * norm.slice().slices() * 3);
      walk_of<BatchNormGradientSumsKernel<T>>(Order::kBackwards, norm.slice(), dy, x, norm.mean,
                                              norm.inverse, partial);
      std::vector<T> to_weight = weight, to_bias = bias;
      Values sums = add_channels<T>(norm.slice(), partial.data(), true, to_bias.data());
      const Values products = add_channels<T>(
          norm.slice(), partial.data() + norm.slice().slices() * 3, true, to_weight.data());
      sums.insert(sums.end(), products.begin(), products.end());
      check_close(sums, expected.gradient_sums, 1e-10);
      check_close(to_weight, dweight, unit<T>() + 1e-12);
      check_close(to_bias, dbias, unit<T>() + 1e-12);
      std::vector<T> dx = dy;
      walk_of<BatchNormBackwardInputKernel<T>>(shape, &norm.count, norm.mean, norm.inverse, sums,
                                               weight, x, dx);
      check_close(dx, gradient, 32 * unit<T>());
    }
  });
}

TEST_CASE("cuda pooling: as the host's, with odd sizes, equals and NaN") {
  for_each_type([]<class T>(T) {
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
      walk(MaxPoolForwardKernel<T>{shape, x.data(), y.data(), which.data()});
      REQUIRE(which == expected_which);
      for (size_t i = 0; i < y.size(); ++i) {
        const double got = widen(y[i]);
        REQUIRE((got == expected[i] || (std::isnan(got) && std::isnan(expected[i]))));
      }
      const std::vector<T> dy = as<T>(noise(y.size(), 2));
      Values expected_dx(x.size());
      max_pool_backward<double>(shape, wide(dy).data(), which.data(), expected_dx.data());
      std::vector<T> dx = x;
      walk(MaxPoolBackwardKernel<T>{shape, dy.data(), which.data(), dx.data()});
      REQUIRE(wide(dx) == expected_dx);
    }
    const std::vector<T> x = as<T>(noise(11 * 49, 1)), dy = as<T>(noise(11, 2));
    Values average(11), spread(11 * 49);
    average_pool_forward<double>(11, 49, wide(x).data(), average.data());
    average_pool_backward<double>(11, 49, wide(dy).data(), spread.data());
    std::vector<T> y(11), dx(11 * 49);
    walk(AveragePoolForwardKernel<T>{11, 49, x.data(), y.data()}, Order::kBackwards);
    walk(AveragePoolBackwardKernel<T>{11, 49, dy.data(), dx.data()});
    check_close(y, average, unit<T>());
    check_close(dx, spread, unit<T>());
  });
}

}  // namespace rondo::trainer::cuda_image_layers_test
