// The kernels of images' layers on a GPU, against the same kernels walked on the host.
#include "tests/trainer/cuda/compare.hpp"
#include "trainer/layers/cuda/batch_norm.hpp"
#include "trainer/layers/cuda/convolution.hpp"
#include "trainer/layers/cuda/pooling.hpp"

namespace rondo::trainer::image_layers_cuda_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

template <class T>
void compare_batch_norm() {
  constexpr size_t kSamples = 20, kChannels = 3, kPixels = 130, kSlices = 2;
  constexpr size_t kCount = kSamples * kChannels * kPixels;
  const BatchNormShape shape{.samples = kSamples, .channels = kChannels, .pixels = kPixels};
  const ChannelSlice slice{kSamples, kChannels, kPixels};
  const auto of_channels = [](uint64_t key) { return noise<double>(kChannels, key); };
  compare<ChannelSumsKernel<T>>("sums of channels", 1e-12, slice, noise<T>(kCount, 1),
                                of_channels(2), Buffer<double>(kSlices * kChannels));
  compare<BatchNormGradientSumsKernel<T>>("batch norm's gradient sums", 1e-12, slice,
                                          noise<T>(kCount, 1), noise<T>(kCount, 2), of_channels(3),
                                          of_channels(4), Buffer<double>(2 * kSlices * kChannels));
  compare<AddChannelsKernel<T>>("slices of channels", bound_of<T>(1), kSlices, kChannels,
                                noise<double>(kSlices * kChannels, 1), Buffer<double>(kChannels),
                                true, noise<T>(kChannels, 2));
  const Buffer<T> weight = noise<T>(kChannels, 3), bias = noise<T>(kChannels, 4);
  compare<BatchNormForwardKernel<T>>("batch norm", bound_of<T>(16), shape, of_channels(1),
                                     of_channels(2),
                                     BatchNormParameters<const T>{weight.data(), bias.data()},
                                     noise<T>(kCount, 5), true, Buffer<T>(kCount));
  compare<BatchNormBackwardInputKernel<T>>("batch norm's input", bound_of<T>(16), shape,
                                           Buffer<double>{7}, of_channels(1), of_channels(2),
                                           noise<double>(2 * kChannels, 3), noise<T>(kChannels, 4),
                                           noise<T>(kCount, 5), noise<T>(kCount, 6));
}

template <class T>
void compare_pooling() {
  const PoolShape shape{.planes = 5, .height = 9, .width = 7};
  constexpr size_t kPixels = 63;
  const size_t count = shape.planes * kPixels;
  Buffer<uint8_t> which(shape.out_count());
  compare<MaxPoolForwardKernel<T>>("maximum", 0, shape, noise<T>(count, 1),
                                   Buffer<T>(shape.out_count()), which);
  for (size_t i = 0; i < which.size(); ++i) which[i] = static_cast<uint8_t>(mix(i) % 4);
  compare<MaxPoolBackwardKernel<T>>("maximum backward", 0, shape, noise<T>(shape.out_count(), 1),
                                    which, Buffer<T>(count));
  compare<AveragePoolForwardKernel<T>>("average", bound_of<T>(1), shape.planes, kPixels,
                                       noise<T>(count, 1), Buffer<T>(shape.planes));
  compare<AveragePoolBackwardKernel<T>>("average backward", 0, shape.planes, kPixels,
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
  using Weight = ConvolutionWeightKernel<T, kM>;
  const size_t parts = Weight{shape, nullptr, nullptr, nullptr}.parts();
  REQUIRE(parts > 1);
  compare_made("convolution", bound_of<T>(1e4), &convolution_kernel<T, kM>, shape, noise<T>(in, 1),
               noise<T>(weights, 2), noise<T>(shape.out_channels, 3), true, Buffer<T>(out));
  compare_made("convolution's input", bound_of<T>(1e4), &convolution_input_kernel<T, kM>, shape,
               InputClass{1, 0}, noise<T>(out, 1), noise<T>(weights, 2), Buffer<T>(in));
  compare<Weight>("convolution's weight", bound_of<float>(1e4), shape, noise<T>(in, 2),
                  noise<T>(out, 1), Buffer<Wide<T>>(parts * weights));
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
  compare_convolutions<Float16Bits>();
  for (const bool variance : {false, true}) {
    compare<BatchNormFinishKernel>("batch norm's statistics", 1e-15, size_t{70}, Buffer<double>{7},
                                   Buffer<double>(70, 3), variance, 1e-5, Buffer<double>(70));
  }
}

}  // namespace rondo::trainer::image_layers_cuda_test
