// The kernels of images' layers on a GPU, against the same kernels walked on the host.
#include "tests/trainer/cuda/compare.hpp"
#include "trainer/layers/cuda/batch_norm.hpp"
#include "trainer/layers/cuda/convolution.hpp"
#include "trainer/layers/cuda/pooling.hpp"

namespace rondo::trainer::image_layers_cuda_test {

using cuda::BFloat16Bits;
using cuda::testing::bound_of;
using cuda::testing::Buffer;
using cuda::testing::compare;
using cuda::testing::noise;

namespace {

template <class T>
void compare_batch_norm() {
  constexpr size_t kSamples = 20, kChannels = 3, kPixels = 130, kSlices = 2;
  constexpr size_t kCount = kSamples * kChannels * kPixels;
  const BatchNormShape shape{.samples = kSamples, .channels = kChannels, .pixels = kPixels};
  const cuda::ChannelSlice slice{kSamples, kChannels, kPixels};
  compare(
      "sums of channels", 1e-12,
      [&](auto& x, auto& mean, auto& partial) {
        return cuda::ChannelSumsKernel<T>{slice, x.data(), mean.data(), partial.data()};
      },
      noise<T>(kCount, 1), noise<double>(kChannels, 2), Buffer<double>(kSlices * kChannels));
  compare(
      "batch norm's gradient sums", 1e-12,
      [&](auto& dy, auto& x, auto& mean, auto& inverse, auto& partial) {
        return cuda::BatchNormGradientSumsKernel<T>{slice,       dy.data(),      x.data(),
                                                    mean.data(), inverse.data(), partial.data()};
      },
      noise<T>(kCount, 1), noise<T>(kCount, 2), noise<double>(kChannels, 3),
      noise<double>(kChannels, 4), Buffer<double>(2 * kSlices * kChannels));
  compare(
      "slices of channels", bound_of<T>(1),
      [](auto& partial, auto& sums, auto& gradient) {
        return cuda::AddChannelsKernel<T>{kSlices,     kChannels, partial.data(),
                                          sums.data(), true,      gradient.data()};
      },
      noise<double>(kSlices * kChannels, 1), Buffer<double>(kChannels), noise<T>(kChannels, 2));
  compare(
      "batch norm", bound_of<T>(16),
      [&](auto& mean, auto& inverse, auto& weight, auto& bias, auto& x, auto& y) {
        return cuda::BatchNormForwardKernel<T>{
            shape,    mean.data(), inverse.data(), {weight.data(), bias.data()},
            x.data(), true,        y.data()};
      },
      noise<double>(kChannels, 1), noise<double>(kChannels, 2), noise<T>(kChannels, 3),
      noise<T>(kChannels, 4), noise<T>(kCount, 5), Buffer<T>(kCount));
  compare(
      "batch norm's input", bound_of<T>(16),
      [&](auto& count, auto& mean, auto& inverse, auto& sums, auto& weight, auto& x, auto& dy) {
        return cuda::BatchNormBackwardInputKernel<T>{shape,          count.data(), mean.data(),
                                                     inverse.data(), sums.data(),  weight.data(),
                                                     x.data(),       dy.data()};
      },
      Buffer<double>{7}, noise<double>(kChannels, 1), noise<double>(kChannels, 2),
      noise<double>(2 * kChannels, 3), noise<T>(kChannels, 4), noise<T>(kCount, 5),
      noise<T>(kCount, 6));
}

template <class T>
void compare_pooling() {
  const PoolShape shape{.planes = 5, .height = 9, .width = 7};
  constexpr size_t kPixels = 63;
  const size_t count = shape.planes * kPixels;
  Buffer<uint8_t> which(shape.out_count());
  compare(
      "maximum", 0,
      [&](auto& x, auto& y, auto& best) {
        return cuda::MaxPoolForwardKernel<T>{shape, x.data(), y.data(), best.data()};
      },
      noise<T>(count, 1), Buffer<T>(shape.out_count()), which);
  for (size_t i = 0; i < which.size(); ++i) which[i] = static_cast<uint8_t>(mix(i) % 4);
  compare(
      "maximum backward", 0,
      [&](auto& dy, auto& best, auto& dx) {
        return cuda::MaxPoolBackwardKernel<T>{shape, dy.data(), best.data(), dx.data()};
      },
      noise<T>(shape.out_count(), 1), which, Buffer<T>(count));
  compare(
      "average", bound_of<T>(1),
      [&](auto& x, auto& y) {
        return cuda::AveragePoolForwardKernel<T>{shape.planes, kPixels, x.data(), y.data()};
      },
      noise<T>(count, 1), Buffer<T>(shape.planes));
  compare(
      "average backward", 0,
      [&](auto& dy, auto& dx) {
        return cuda::AveragePoolBackwardKernel<T>{shape.planes, kPixels, dy.data(), dx.data()};
      },
      noise<T>(shape.planes, 1), Buffer<T>(count));
}

/// kM: rows of a tile.
template <class T, uint32_t kM>
void compare_convolution() {
  const ConvolutionShape shape{.samples = 4,
                               .in_channels = kM - 3,
                               .height = 19,
                               .width = 33,
                               .out_channels = kM - 5,
                               .kernel = 3,
                               .stride = 2,
                               .padding = 1};
  const size_t in = shape.samples * shape.in_size(), out = shape.samples * shape.out_size();
  const size_t weights = shape.out_channels * shape.patch();
  using Weight = cuda::ConvolutionWeightKernel<T, kM>;
  const size_t parts = Weight{shape, nullptr, nullptr, nullptr}.parts();
  REQUIRE(parts > 1);
  compare(
      "convolution", bound_of<T>(1e4),
      [&](auto& x, auto& w, auto& bias, auto& y) {
        return cuda::convolution_kernel<T, kM>(shape, x.data(), w.data(), bias.data(), true,
                                               y.data());
      },
      noise<T>(in, 1), noise<T>(weights, 2), noise<T>(shape.out_channels, 3), Buffer<T>(out));
  compare(
      "convolution's input", bound_of<T>(1e4),
      [&](auto& dy, auto& w, auto& dx) {
        return cuda::convolution_input_kernel<T, kM>(shape, {1, 0}, dy.data(), w.data(), dx.data());
      },
      noise<T>(out, 1), noise<T>(weights, 2), Buffer<T>(in));
  compare(
      "convolution's weight", bound_of<float>(1e4),
      [&](auto& dy, auto& x, auto& partial) {
        return Weight{shape, x.data(), dy.data(), partial.data()};
      },
      noise<T>(out, 1), noise<T>(in, 2), Buffer<cuda::Wide<T>>(parts * weights));
}

template <class T>
void compare_convolutions() {
  compare_convolution<T, 16>();
  compare_convolution<T, 32>();
  compare_convolution<T, 64>();
}

}  // namespace

TEST_CASE("layers of images on a GPU equal the same kernels on the host") {
  compare_batch_norm<float>();
  compare_batch_norm<BFloat16Bits>();
  compare_pooling<float>();
  compare_pooling<BFloat16Bits>();
  compare_convolutions<float>();
  compare_convolutions<BFloat16Bits>();
  compare_convolutions<cuda::Float16Bits>();
  const auto finish = [](bool variance) {
    compare(
        "batch norm's statistics", 1e-15,
        [&](auto& count, auto& sums, auto& values) {
          return cuda::BatchNormFinishKernel{70,       count.data(), sums.data(),
                                             variance, 1e-5,         values.data()};
        },
        Buffer<double>{7}, Buffer<double>(70, 3), Buffer<double>(70));
  };
  finish(false);
  finish(true);
}

}  // namespace rondo::trainer::image_layers_cuda_test
