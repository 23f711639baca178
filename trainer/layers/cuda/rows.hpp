// What layers do to numbers one by one, and the sums of columns in a fixed order. See
// ../host/rows.hpp.
#pragma once

#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

/// y[rows x width] += bias[width] in every row, unless that is null, and then max(0, y) when `relu`;
/// NaN stays one. N divides width.
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
    const Pack<T, N> added = bias != nullptr ? load<N>(bias + i % width) : Pack<T, N>{};
    for (int j = 0; j < N; ++j) {
      const Wide<T> sum = widen(pack.at[j]) + widen(added.at[j]);
      pack.at[j] = narrow<T>(relu && sum <= 0 ? Wide<T>{0} : sum);
    }
    store(pack, y + i);
  }
};

/// In place on the gradient of a ReLU's output y: zero wherever y is not positive. N divides count.
template <class T, int N>
struct ReluBackwardKernel {
  size_t count;
  const T* y;
  T* dy;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(count / N, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = (size_t{block.index().x} * kThreads + block.thread()) * N;
    if (i >= count) return;
    const Pack<T, N> output = load<N>(y + i);
    Pack<T, N> gradient = load<N>(dy + i);
    for (int j = 0; j < N; ++j) {
      if (!(widen(output.at[j]) > 0)) gradient.at[j] = narrow<T>(0);
    }
    store(gradient, dy + i);
  }
};

/// values[count] *= factor. A pack divides count.
template <class T>
struct ScaleKernel {
  size_t count;
  Wide<T> factor;
  T* values;

  static constexpr int kN = kPack<T>;
  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(count / kN, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = (size_t{block.index().x} * kThreads + block.thread()) * kN;
    if (i >= count) return;
    Pack<T, kN> pack = load<kN>(values + i);
    for (int j = 0; j < kN; ++j) pack.at[j] = narrow<T>(factor * widen(pack.at[j]));
    store(pack, values + i);
  }
};

/// A block's part of sums over rows: kWarp packs of columns, and one of `slices` parts of the rows.
/// Its warps take turns at the rows.
template <class T, int N>
struct ColumnTile {
  size_t rows, width;

  static constexpr uint32_t kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr size_t kColumns = size_t{kWarp} * N;
  static constexpr size_t kRowsOfSlice = 128;

  constexpr size_t slices() const { return ceil_div(rows, kRowsOfSlice); }
  Grid grid() const {
    return {.x = static_cast<uint32_t>(ceil_div(width, kColumns)),
            .y = static_cast<uint32_t>(slices())};
  }
  size_t shared_bytes() const { return kWarps * kColumns * sizeof(Wide<T>); }

  using ColumnSums = Pack<Wide<T>, N>;

  /// partial[kSums x slices x width]: the slice's sums. read(row, column) returns what there is of N
  /// columns of a row, and take(that, row, column, terms) sets their terms of each of the kSums: now
  /// and then twice, with the same.
  template <uint32_t kSums, class Block, class Read, class Take>
  RONDO_DEVICE void sum(Block& block, const Read& read, const Take& take, Wide<T>* partial) const {
    const uint32_t lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    const size_t column = block.index().x * kColumns + size_t{lane} * N;
    const size_t first = block.index().y * kRowsOfSlice;
    const size_t end = first + kRowsOfSlice < rows ? first + kRowsOfSlice : rows;
    using Row = decltype(read(first, column));
    constexpr uint32_t kAtOnce = 4 * sizeof(Pack<T, N>) / sizeof(Row);  // rows: four packs
    ColumnSums sums[kSums] = {};
    for (size_t row = first + warp; row < end && column < width; row += kWarps * kAtOnce) {
      // Past the end the first row again, which does not count: a branch would part the reads.
      Row got[kAtOnce];
      const auto at = [&](uint32_t j) { return row + j * kWarps < end ? row + j * kWarps : row; };
      unrolled<kAtOnce>([&](uint32_t j) { got[j] = read(at(j), column); });
      after_reads();
      unrolled<kAtOnce>([&](uint32_t j) {
        ColumnSums terms[kSums];
        take(got[j], at(j), column, terms);
        const bool counts = row + j * kWarps < end;
        for (uint32_t k = 0; k < kSums; ++k) {
          for (int n = 0; n < N; ++n) sums[k].at[n] += counts ? terms[k].at[n] : 0;
        }
      });
    }
    Wide<T>* const of_warps = block.template shared<Wide<T>>();
    unrolled<kSums>([&](uint32_t k) {
      if (k > 0) block.sync();
      for (int j = 0; j < N; ++j) {
        of_warps[warp * kColumns + size_t{lane} * N + j] = sums[k].at[j];
      }
      block.sync();
      Wide<T>* const to = partial + (k * ceil_div(rows, kRowsOfSlice) + block.index().y) * width;
      for (size_t c = block.thread(); c < kColumns; c += kThreads) {
        if (block.index().x * kColumns + c >= width) break;
        Wide<T> all = 0;
        for (uint32_t w = 0; w < kWarps; ++w) all += of_warps[w * kColumns + c];
        to[block.index().x * kColumns + c] = all;
      }
    });
  }
};

/// partial[slices x width]: the sums of the columns of x[rows x width] by slices of rows, for
/// AddSlicesKernel. From a row of x to the next are `stride` elements, which N divides.
template <class T, int N>
struct SumColumnsKernel {
  size_t rows, width, stride;
  const T* x;
  Wide<T>* partial;

  static constexpr uint32_t kThreads = ColumnTile<T, N>::kThreads;
  ColumnTile<T, N> tile() const { return {rows, width}; }
  Grid grid() const { return tile().grid(); }
  size_t shared_bytes() const { return tile().shared_bytes(); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using ColumnSums = typename ColumnTile<T, N>::ColumnSums;
    const auto read = [&](size_t row, size_t column) { return load<N>(x + row * stride + column); };
    const auto take = [](const Pack<T, N>& pack, size_t, size_t, ColumnSums(&terms)[1]) {
      for (int j = 0; j < N; ++j) terms[0].at[j] = widen(pack.at[j]);
    };
    ColumnTile<T, N>{rows, width}.template sum<1>(block, read, take, partial);
  }
};

/// sums[width] = the sum of partial[slices x width]; added when `accumulate`. `second`: the same of the
/// slices after those, unless it is null. Where there are slices enough a block's threads take turns at
/// them: one that read them all would take longer for addresses than for numbers.
template <class T>
struct AddSlicesKernel {
  size_t slices, width;
  const Wide<T>* partial;
  bool accumulate;
  T* sums;
  T* second = nullptr;

  static constexpr uint32_t kThreads = 256;
  constexpr uint32_t turns() const { return slices < 8 ? 1 : slices < 64 ? 8 : 32; }
  Grid grid() const {
    return {.x = static_cast<uint32_t>(ceil_div(width, kThreads / turns())),
            .y = second == nullptr ? 1u : 2u};
  }
  size_t shared_bytes() const { return kThreads * sizeof(Wide<T>); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t columns = kThreads / turns(), turn = block.thread() / columns;
    const size_t column = size_t{block.index().x} * columns + block.thread() % columns;
    const bool is_second = block.index().y > 0;
    const Wide<T>* const from = partial + (is_second ? slices * width : 0);
    T* const to = is_second ? second : sums;
    constexpr uint32_t kAtOnce = 4;
    size_t next = turn * width + column;
    Wide<T> sum = 0;
    for (size_t s = turn; s < slices && column < width; s += kAtOnce * turns()) {
      // Past the end the first one again, which does not count: a branch would part the reads.
      const size_t first = next;
      Wide<T> got[kAtOnce];
      unrolled<kAtOnce>([&](uint32_t j) {
        got[j] = from[s + j * turns() < slices ? next : first];
        next += turns() * width;
      });
      after_reads();
      unrolled<kAtOnce>([&](uint32_t j) { sum += s + j * turns() < slices ? got[j] : 0; });
    }
    Wide<T>* const of_turns = block.template shared<Wide<T>>();
    of_turns[block.thread()] = sum;
    block.sync();
    for (uint32_t half = turns() / 2; half > 0; half /= 2) {
      if (turn < half) of_turns[block.thread()] += of_turns[block.thread() + half * columns];
      block.sync();
    }
    if (turn > 0 || column >= width) return;
    sum = of_turns[block.thread()];
    to[column] = narrow<T>(accumulate ? widen(to[column]) + sum : sum);
  }
};

/// *sum += the values: of rows, their losses or hits; or blocks' sums of squares.
struct AddRowsKernel {
  size_t count;
  const double* values;
  double* sum;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = count == 0 ? 0u : 1u}; }
  size_t shared_bytes() const { return kThreads / kWarp * sizeof(double); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    double own = 0;
    for (size_t i = block.thread(); i < count; i += kThreads) own += values[i];
    own = block_fold(
        block, kThreads, own, [](double a, double b) { return a + b; },
        block.template shared<double>());
    if (block.thread() == 0) *sum += own;
  }
};

}  // namespace rondo::trainer::cuda
