// What a convolution does beside its matrix products (see ../host/convolution.hpp): patches of
// images become columns, gradients of columns become those of images, and biases. Every element is
// gathered by one thread, so that its sum has one order.
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/cuda/divisor.hpp"
#include "trainer/layers/host/convolution.hpp"

namespace rondo::trainer::cuda {

/// columns[samples x patch x out_pixels] from x[samples x in_channels x height x width]; zeros
/// where the padding is.
template <class T>
struct UnfoldKernel {
  ConvolutionShape shape;
  const T* x;
  T* columns;
  size_t elements = shape.samples * shape.columns();
  Divisor by_pixels{shape.out_pixels()}, by_patch{shape.patch()};
  Divisor by_area{shape.kernel * shape.kernel}, by_kernel{shape.kernel};
  Divisor by_out_width{shape.out_width()};

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(elements, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t i = block.index().x * kThreads + block.thread();
    if (i >= elements) return;
    const auto [of_samples, pixel] = by_pixels.divide(i);
    const auto [sample, in_patch] = by_patch.divide(of_samples);
    const auto [channel, under_kernel] = by_area.divide(in_patch);
    const auto [ky, kx] = by_kernel.divide(under_kernel);
    const auto [out_y, out_x] = by_out_width.divide(pixel);
    const size_t y = out_y * shape.stride + ky, x_at = out_x * shape.stride + kx;
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
  size_t elements = shape.samples * shape.in_size();
  size_t out_height = shape.out_height(), out_width = shape.out_width();
  Divisor by_width{shape.width}, by_height{shape.height}, by_stride{shape.stride};

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(elements, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t i = block.index().x * kThreads + block.thread();
    if (i >= elements) return;
    const auto [of_rows, column] = by_width.divide(i);
    const auto [plane, in_plane] = by_height.divide(of_rows);  // plane: of all samples' channels
    const uint32_t x = column + static_cast<uint32_t>(shape.padding);
    const uint32_t y = in_plane + static_cast<uint32_t>(shape.padding);
    Wide<T> sum = 0;
    for (uint32_t ky = 0; ky < shape.kernel && ky <= y; ++ky) {
      const auto [out_y, off_y] = by_stride.divide(y - ky);
      if (off_y != 0 || out_y >= out_height) continue;
      for (uint32_t kx = 0; kx < shape.kernel && kx <= x; ++kx) {
        const auto [out_x, off_x] = by_stride.divide(x - kx);
        if (off_x != 0 || out_x >= out_width) continue;
        const size_t row = (plane * shape.kernel + ky) * shape.kernel + kx;
        sum += widen(columns[(row * out_height + out_y) * out_width + out_x]);
      }
    }
    dx[i] = narrow<T>(sum);
  }
};

/// sums[width] = the sum of parts[count x width], part by part; added when `accumulate`. The parts
/// are samples' gradients of the weight.
template <class T>
struct AddPartsKernel {
  size_t count, width;
  const T* parts;
  bool accumulate;
  T* sums;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(width, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= width) return;
    Wide<T> sum = accumulate ? widen(sums[i]) : Wide<T>{0};
    for (size_t p = 0; p < count; ++p) sum += widen(parts[p * width + i]);
    sums[i] = narrow<T>(sum);
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
  size_t elements = shape.samples * shape.out_size();
  Divisor by_pixels{shape.out_pixels()}, by_channels{shape.out_channels};

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(elements, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t i = block.index().x * kThreads + block.thread();
    if (i >= elements) return;
    const uint32_t channel = by_channels.divide(by_pixels.divide(i).quotient).remainder;
    const Wide<T> sum = widen(y[i]) + widen(bias[channel]);
    y[i] = narrow<T>(relu && sum < 0 ? Wide<T>{0} : sum);
  }
};

}  // namespace rondo::trainer::cuda
