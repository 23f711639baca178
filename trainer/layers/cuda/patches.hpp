// The matrix that makes a product of a convolution: a column of it is what one output pixel sees. It
// is nowhere in memory; kernels gather its tiles from the images (implicit GEMM: cuDNN, Chetlur et
// al. 2014). See convolution.hpp.
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/cuda/divisor.hpp"
#include "trainer/layers/host/convolution.hpp"

namespace rondo::trainer::cuda {

/// A pixel of a sample, or a tap of the kernel in a plane.
struct Spot {
  uint32_t plane, y, x;
};

/// Where the elements of something over spots lie.
struct SpotStrides {
  uint32_t first, of_plane, of_y, of_x;
  RONDO_DEVICE uint32_t at(const Spot& spot) const {
    return first + spot.plane * of_plane + spot.y * of_y + spot.x * of_x;
  }
};

/// Kernels may be as high and as wide: Patches has a bit for every row and column of taps.
inline constexpr size_t kLargestKernel = 15;

/// Whether an element is inside costs one instruction: no tap of the row is outside for the column.
struct PatchColumn {
  uint32_t offset;
  uint32_t outside;  // bits of such y, from 0 on, and x, from kLargestKernel on; all: no column
};
struct alignas(16) PatchRow {
  uint32_t offset;
  uint32_t taps;    // one y and one x; all: no row
  uint32_t weight;  // where the tap's is
};

/// Of images[samples x planes x height x width]. Columns are pixels of a grid[samples x grid height
/// x grid width], rows are taps[planes x kernel height x kernel width]; the element of both is the
/// image's number at the column's (y, x) plus, or minus, the row's, and 0 outside of the image.
/// All numbers here are modulo 2^32.
struct Patches {
  uint32_t height, width;
  uint32_t columns, rows;
  uint32_t column_step;       // from a column's (y, x) to its neighbour's
  uint32_t first_y, first_x;  // of the first column
  bool subtracts;             // a row's (y, x)
  uint32_t sample_size, plane_size = height * width;
  Divisor by_grid, by_grid_width, by_kernel, by_kernel_width;

  /// The grid's pixel; its plane is the sample. REQUIRES: column < columns.
  RONDO_DEVICE Spot pixel(uint32_t column) const {
    const auto [sample, in_sample] = by_grid.divide(column);
    const auto [y, x] = by_grid_width.divide(in_sample);
    return {sample, y, x};
  }
  RONDO_DEVICE PatchColumn column_of(const Spot& pixel) const {
    const uint32_t y = first_y + column_step * pixel.y, x = first_x + column_step * pixel.x;
    const uint32_t bits_of_x = outside(x, width) << kLargestKernel;
    return {pixel.plane * sample_size + y * width + x, outside(y, height) | bits_of_x | kNoRow};
  }
  RONDO_DEVICE static PatchColumn no_column() { return {0, kAll}; }
  RONDO_DEVICE PatchRow row_of(uint32_t row, const SpotStrides& weights) const {
    if (row >= rows) return {0, kNoRow, 0};
    const auto [plane, in_plane] = by_kernel.divide(row);
    const auto [y, x] = by_kernel_width.divide(in_plane);
    const uint32_t forwards = y * width + x;
    return {plane * plane_size + (subtracts ? 0 - forwards : forwards),
            uint32_t{1} << y | uint32_t{1} << (kLargestKernel + x), weights.at({plane, y, x})};
  }
  template <class T>
  RONDO_DEVICE static T element(const T* images, const PatchColumn& column, const PatchRow& row) {
    return read_inside(images, column.offset + row.offset, (column.outside & row.taps) == 0);
  }

 private:
  static constexpr uint32_t kAll = ~uint32_t{0};
  static constexpr uint32_t kNoRow = uint32_t{1} << 31;  // beyond all taps

  /// Bit t: whether position + t, or - t, is outside of [0, extent).
  RONDO_DEVICE uint32_t outside(uint32_t position, uint32_t extent) const {
    constexpr auto kMost = static_cast<int32_t>(kLargestKernel);
    const auto bits_below = [](int32_t t) {
      return (uint32_t{1} << (t < 0 ? 0 : t > kMost ? kMost : t)) - 1;
    };
    if (subtracts) position = extent - 1 - position;
    const uint32_t before_end = bits_below(static_cast<int32_t>(extent - position));
    return bits_below(static_cast<int32_t>(0 - position)) | (bits_below(kMost) & ~before_end);
  }
};

/// What the output's pixels see of the input.
inline Patches input_patches(const ConvolutionShape& s) {
  const auto of = [](size_t value) { return static_cast<uint32_t>(value); };
  return {.height = of(s.height),
          .width = of(s.width),
          .columns = of(s.samples * s.out_pixels()),
          .rows = of(s.patch()),
          .column_step = of(s.stride),
          .first_y = 0 - of(s.padding),
          .first_x = 0 - of(s.padding),
          .subtracts = false,
          .sample_size = of(s.in_size()),
          .by_grid = Divisor(s.out_pixels()),
          .by_grid_width = Divisor(s.out_width()),
          .by_kernel = Divisor(s.kernel * s.kernel),
          .by_kernel_width = Divisor(s.kernel)};
}

/// One of the classes of input pixels that see the same taps: those whose y and x are these, modulo
/// the stride.
struct InputClass {
  size_t y, x;
};

/// How many taps of a kernel's row or column pixels of a class see, and which is their first.
struct SeenTaps {
  size_t first, count;
};
inline SeenTaps seen_taps(const ConvolutionShape& s, size_t of_class) {
  const size_t first = (of_class + s.padding) % s.stride;
  return {first, first < s.kernel ? (s.kernel - first + s.stride - 1) / s.stride : 0};
}

/// What a class of the input's pixels sees of the output: input pixel y is under the output's pixel
/// (y + padding - tap) / stride, where that is whole.
inline Patches output_patches(const ConvolutionShape& s, const InputClass& which) {
  const auto of = [](size_t value) { return static_cast<uint32_t>(value); };
  const auto pixels = [&](size_t extent, size_t first) {
    return (extent - first + s.stride - 1) / s.stride;
  };
  const size_t grid_height = pixels(s.height, which.y), grid_width = pixels(s.width, which.x);
  const SeenTaps taps_y = seen_taps(s, which.y), taps_x = seen_taps(s, which.x);
  return {.height = of(s.out_height()),
          .width = of(s.out_width()),
          .columns = of(s.samples * grid_height * grid_width),
          .rows = of(s.out_channels * taps_y.count * taps_x.count),
          .column_step = 1,
          .first_y = of((which.y + s.padding) / s.stride),
          .first_x = of((which.x + s.padding) / s.stride),
          .subtracts = true,
          .sample_size = of(s.out_size()),
          .by_grid = Divisor(grid_height * grid_width),
          .by_grid_width = Divisor(grid_width),
          .by_kernel = Divisor(taps_y.count * taps_x.count),
          .by_kernel_width = Divisor(taps_x.count)};
}

}  // namespace rondo::trainer::cuda
