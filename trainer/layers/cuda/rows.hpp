// What layers do to numbers one by one, and the sums of columns in a fixed order. See
// ../host/rows.hpp.
#pragma once

#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

/// y[rows x width] += bias[width] in every row, and then max(0, y) when `relu`; NaN stays one. N
/// divides width.
template <class T, int N>
struct AddBiasKernel {
  size_t rows, width;
  const T* bias;
  bool relu;
  T* y;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(rows * width / N, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = (size_t{block.index().x} * kThreads + block.thread()) * N;
    if (i >= rows * width) return;
    Pack<T, N> pack = load<N>(y + i);
    const Pack<T, N> added = load<N>(bias + i % width);
    for (int j = 0; j < N; ++j) {
      const Wide<T> sum = widen(pack.at[j]) + widen(added.at[j]);
      pack.at[j] = narrow<T>(relu && sum <= 0 ? Wide<T>{0} : sum);
    }
    store(pack, y + i);
  }
};

/// In place on the gradient of a ReLU's output y: zero wherever y is not positive.
template <class T>
struct ReluBackwardKernel {
  size_t count;
  const T* y;
  T* dy;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(count, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i < count && !(widen(y[i]) > 0)) dy[i] = narrow<T>(0);
  }
};

/// A block's part of sums over rows: kWarp packs of columns, and one of `slices` parts of the rows.
/// Its warps take turns at the rows.
template <class T, int N>
struct ColumnTile {
  size_t rows, width;

  static constexpr uint32_t kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr size_t kColumns = size_t{kWarp} * N;
  static constexpr size_t kRowsOfSlice = 256;

  size_t slices() const { return ceil_div(rows, kRowsOfSlice); }
  Grid grid() const {
    return {.x = static_cast<uint32_t>(ceil_div(width, kColumns)),
            .y = static_cast<uint32_t>(slices())};
  }
  size_t shared_bytes() const { return kWarps * kColumns * sizeof(Wide<T>); }

  /// partial[slice x width] = the slice's sums of value(row, column), which returns N of them.
  template <class Block, class Value>
  RONDO_DEVICE void sum(Block& block, const Value& value, Wide<T>* partial) const {
    const uint32_t lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    const size_t column = block.index().x * kColumns + size_t{lane} * N;
    const size_t first = block.index().y * kRowsOfSlice;
    const size_t end = first + kRowsOfSlice < rows ? first + kRowsOfSlice : rows;
    Pack<Wide<T>, N> sums{};
    for (size_t row = first + warp; row < end && column < width; row += kWarps) {
      const Pack<Wide<T>, N> values = value(row, column);
      for (int j = 0; j < N; ++j) sums.at[j] += values.at[j];
    }
    Wide<T>* const of_warps = block.template shared<Wide<T>>();
    for (int j = 0; j < N; ++j) {
      of_warps[warp * kColumns + size_t{lane} * N + j] = sums.at[j];
    }
    block.sync();
    for (size_t c = block.thread(); c < kColumns; c += kThreads) {
      if (block.index().x * kColumns + c >= width) break;
      Wide<T> all = 0;
      for (uint32_t w = 0; w < kWarps; ++w) all += of_warps[w * kColumns + c];
      partial[block.index().y * width + block.index().x * kColumns + c] = all;
    }
    block.sync();
  }
};

/// partial[slices x width]: the sums of the columns of x[rows x width] by slices of rows, for
/// AddSlicesKernel. N divides width.
template <class T, int N>
struct SumColumnsKernel {
  size_t rows, width;
  const T* x;
  Wide<T>* partial;

  static constexpr uint32_t kThreads = ColumnTile<T, N>::kThreads;
  ColumnTile<T, N> tile() const { return {rows, width}; }
  Grid grid() const { return tile().grid(); }
  size_t shared_bytes() const { return tile().shared_bytes(); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const auto value = [&](size_t row, size_t column) {
      const Pack<T, N> pack = load<N>(x + row * width + column);
      Pack<Wide<T>, N> wide;
      for (int j = 0; j < N; ++j) wide.at[j] = widen(pack.at[j]);
      return wide;
    };
    ColumnTile<T, N>{rows, width}.sum(block, value, partial);
  }
};

/// sums[width] = the sum of partial[slices x width], slice by slice; added when `accumulate`.
template <class T>
struct AddSlicesKernel {
  size_t slices, width;
  const Wide<T>* partial;
  bool accumulate;
  T* sums;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(width, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t column = size_t{block.index().x} * kThreads + block.thread();
    if (column >= width) return;
    Wide<T> sum = accumulate ? widen(sums[column]) : Wide<T>{0};
    for (size_t s = 0; s < slices; ++s) sum += partial[s * width + column];
    sums[column] = narrow<T>(sum);
  }
};

}  // namespace rondo::trainer::cuda
