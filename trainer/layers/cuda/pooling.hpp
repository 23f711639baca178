// Pooling of images. See ../host/pooling.hpp.
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/cuda/divisor.hpp"
#include "trainer/layers/host/pooling.hpp"

namespace rondo::trainer::cuda {

/// y[planes x out_height x out_width], and where in its window each stood: the first of equals. A
/// NaN is larger than any number.
template <class T>
struct MaxPoolForwardKernel {
  PoolShape shape;
  const T* x;
  T* y;
  uint8_t* which;
  size_t elements = shape.out_count();
  Divisor by_width{shape.out_width()}, by_height{shape.out_height()};

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(elements, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t i = block.index().x * kThreads + block.thread();
    if (i >= elements) return;
    const auto [of_rows, column] = by_width.divide(i);
    const auto [plane, row] = by_height.divide(of_rows);
    const T* const window =
        x + (plane * shape.height + 2 * size_t{row}) * shape.width + 2 * size_t{column};
    uint8_t best = 0;
    T value = window[0];
    for (uint8_t k = 1; k < 4; ++k) {
      const T other = window[k / 2 * shape.width + k % 2];
      const bool larger = !(widen(value) >= widen(other)) && widen(value) == widen(value);
      if (!larger) continue;
      value = other;
      best = k;
    }
    y[i] = value;
    which[i] = best;
  }
};

/// dx[planes x height x width]: each dy where its value stood, zero elsewhere.
template <class T>
struct MaxPoolBackwardKernel {
  PoolShape shape;
  const T* dy;
  const uint8_t* which;
  T* dx;
  size_t elements = shape.planes * shape.height * shape.width;
  Divisor by_width{shape.width}, by_height{shape.height};

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(elements, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t i = block.index().x * kThreads + block.thread();
    if (i >= elements) return;
    const auto [of_rows, column] = by_width.divide(i);
    const auto [plane, row] = by_height.divide(of_rows);
    const size_t out_width = shape.width / 2, out_height = shape.height / 2;
    dx[i] = narrow<T>(0);
    if (row / 2 >= out_height || column / 2 >= out_width) return;
    const size_t from = (plane * out_height + row / 2) * out_width + column / 2;
    if (which[from] == row % 2 * 2 + column % 2) dx[i] = dy[from];
  }
};

/// y[planes] = the averages of x[planes x pixels], pixels > 0. A warp takes a plane.
template <class T>
struct AveragePoolForwardKernel {
  size_t planes, pixels;
  const T* x;
  T* y;

  static constexpr uint32_t kThreads = 256, kPlanes = kThreads / kWarp;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(planes, kPlanes))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t plane = size_t{block.index().x} * kPlanes + block.thread() / kWarp;
    if (plane >= planes) return;  // the whole warp
    double sum = 0;
    for (size_t i = block.thread() % kWarp; i < pixels; i += kWarp) {
      sum += static_cast<double>(widen(x[plane * pixels + i]));
    }
    sum = warp_sum(block, sum);
    if (block.thread() % kWarp != 0) return;
    y[plane] = narrow<T>(static_cast<Wide<T>>(sum / static_cast<double>(pixels)));
  }
};

template <class T>
struct AveragePoolBackwardKernel {
  size_t planes, pixels;
  const T* dy;
  T* dx;
  size_t elements = planes * pixels;
  Divisor by_pixels{pixels};

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(elements, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t i = block.index().x * kThreads + block.thread();
    if (i >= elements) return;
    dx[i] = narrow<T>(widen(dy[by_pixels.divide(i).quotient]) / static_cast<Wide<T>>(pixels));
  }
};

}  // namespace rondo::trainer::cuda
