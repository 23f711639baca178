// What a convolution does beside its matrix products (see ../host/convolution.hpp): patches of
// images become columns, gradients of columns become those of images, and biases. Every element is
// gathered by one thread, so that its sum has one order.
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/host/convolution.hpp"

namespace rondo::trainer::cuda {

/// columns[samples x patch x out_pixels] from x[samples x in_channels x height x width]; zeros
/// where the padding is.
template <class T>
struct UnfoldKernel {
  ConvolutionShape shape;
  const T* x;
  T* columns;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const {
    return {.x = static_cast<uint32_t>(ceil_div(shape.samples * shape.columns(), kThreads))};
  }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    const size_t out_width = (shape.width + 2 * shape.padding - shape.kernel) / shape.stride + 1;
    const size_t out_height = (shape.height + 2 * shape.padding - shape.kernel) / shape.stride + 1;
    const size_t patch = shape.in_channels * shape.kernel * shape.kernel;
    const size_t pixels = out_height * out_width;
    if (i >= shape.samples * patch * pixels) return;
    const size_t pixel = i % pixels, in_patch = i / pixels % patch, sample = i / pixels / patch;
    const size_t channel = in_patch / (shape.kernel * shape.kernel);
    const size_t y = pixel / out_width * shape.stride + in_patch / shape.kernel % shape.kernel;
    const size_t x_at = pixel % out_width * shape.stride + in_patch % shape.kernel;
    const bool inside = y >= shape.padding && y - shape.padding < shape.height &&
                        x_at >= shape.padding && x_at - shape.padding < shape.width;
    columns[i] =
        inside ? x[((sample * shape.in_channels + channel) * shape.height + y - shape.padding) *
                       shape.width +
                   x_at - shape.padding]
               : narrow<T>(0);
  }
};

/// The transpose: dx[samples x in_channels x height x width] = the sums of what each element stands
/// for in columns[samples x patch x out_pixels].
template <class T>
struct FoldKernel {
  ConvolutionShape shape;
  const T* columns;
  T* dx;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const {
    return {.x = static_cast<uint32_t>(ceil_div(shape.samples * shape.in_size(), kThreads))};
  }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= shape.samples * shape.in_channels * shape.height * shape.width) return;
    const size_t out_width = (shape.width + 2 * shape.padding - shape.kernel) / shape.stride + 1;
    const size_t out_height = (shape.height + 2 * shape.padding - shape.kernel) / shape.stride + 1;
    const size_t x = i % shape.width + shape.padding;
    const size_t y = i / shape.width % shape.height + shape.padding;
    const size_t plane = i / shape.width / shape.height;  // of all samples' channels
    Wide<T> sum = 0;
    for (size_t ky = 0; ky < shape.kernel && ky <= y; ++ky) {
      if ((y - ky) % shape.stride != 0 || (y - ky) / shape.stride >= out_height) continue;
      for (size_t kx = 0; kx < shape.kernel && kx <= x; ++kx) {
        if ((x - kx) % shape.stride != 0 || (x - kx) / shape.stride >= out_width) continue;
        const size_t row = (plane * shape.kernel + ky) * shape.kernel + kx;
        sum += widen(columns[(row * out_height + (y - ky) / shape.stride) * out_width +
                             (x - kx) / shape.stride]);
      }
    }
    dx[i] = narrow<T>(sum);
  }
};

/// In place on a convolution's output: y += bias[out_channels], then max(0, y) when `relu`; NaN
/// stays one. (The bias's gradient: ChannelSumsKernel and AddChannelsKernel of batch_norm.hpp.)
template <class T>
struct ConvolutionBiasKernel {
  ConvolutionShape shape;
  const T* bias;
  bool relu;
  T* y;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const {
    return {.x = static_cast<uint32_t>(ceil_div(shape.samples * shape.out_size(), kThreads))};
  }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    const size_t pixels = ((shape.height + 2 * shape.padding - shape.kernel) / shape.stride + 1) *
                          ((shape.width + 2 * shape.padding - shape.kernel) / shape.stride + 1);
    if (i >= shape.samples * shape.out_channels * pixels) return;
    const Wide<T> sum = widen(y[i]) + widen(bias[i / pixels % shape.out_channels]);
    y[i] = narrow<T>(relu && sum < 0 ? Wide<T>{0} : sum);
  }
};

}  // namespace rondo::trainer::cuda
