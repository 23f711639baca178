// Layer normalisation with the additions of a residual stream. See ../host/layer_norm.hpp, whose
// operands and formulas these are. A warp takes a row, which stays in its cache from one pass over
// it to the next.
#pragma once

#include "trainer/layers/cuda/rows.hpp"

namespace rondo::trainer::cuda {

/// x, delta, normal, y: [rows x width]; bias, gamma, beta: [width]; reciprocal: [rows]. N divides
/// width > 0.
template <class T, int N>
struct LayerNormForwardKernel {
  size_t rows, width;
  const T* delta;  // x += delta + bias comes first; either may be null, bias is if delta is
  const T* bias;
  const T* gamma;
  const T* beta;
  T* x;
  T* normal;            // out, for backward: (x - mean) / sqrt(variance + 1e-5)
  Wide<T>* reciprocal;  // out, for backward: 1 / sqrt(variance + 1e-5)
  T* y;

  static constexpr uint32_t kThreads = 256, kRows = kThreads / kWarp;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(rows, kRows))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    using std::sqrt;
    const size_t row = size_t{block.index().x} * kRows + block.thread() / kWarp;
    if (row >= rows) return;  // the whole warp
    const size_t begin = size_t{block.thread() % kWarp} * N;
    const size_t at = row * width;
    W sum = 0;
    for (size_t c = begin; c < width; c += size_t{kWarp} * N) {
      Pack<T, N> in = load<N>(x + at + c);
      if (delta != nullptr) {
        const Pack<T, N> more = load<N>(delta + at + c);
        Pack<T, N> shift{};
        if (bias != nullptr) shift = load<N>(bias + c);
        for (int j = 0; j < N; ++j) {
          in.at[j] = narrow<T>(widen(in.at[j]) + (widen(more.at[j]) + widen(shift.at[j])));
        }
        store(in, x + at + c);
      }
      for (int j = 0; j < N; ++j) sum += widen(in.at[j]);
    }
    const W mean = warp_sum(block, sum) / static_cast<W>(width);
    W squares = 0;
    for (size_t c = begin; c < width; c += size_t{kWarp} * N) {
      const Pack<T, N> in = load<N>(x + at + c);
      for (int j = 0; j < N; ++j) {
        const W distance = widen(in.at[j]) - mean;
        squares = multiply_add(distance, distance, squares);
      }
    }
    const W variance = warp_sum(block, squares) / static_cast<W>(width);
    const W factor = 1 / sqrt(variance + W(1e-5));
    for (size_t c = begin; c < width; c += size_t{kWarp} * N) {
      const Pack<T, N> in = load<N>(x + at + c);
      const Pack<T, N> scale = load<N>(gamma + c), shift = load<N>(beta + c);
      Pack<T, N> normalised, out;
      for (int j = 0; j < N; ++j) {
        const W value = (widen(in.at[j]) - mean) * factor;
        normalised.at[j] = narrow<T>(value);
        out.at[j] = narrow<T>(multiply_add(value, widen(scale.at[j]), widen(shift.at[j])));
      }
      store(normalised, normal + at + c);
      store(out, y + at + c);
    }
    if (block.thread() % kWarp == 0) reciprocal[row] = factor;
  }
};

/// dx[rows x width] += the gradient of x, as the other branch's gradient is there. N divides width.
template <class T, int N>
struct LayerNormBackwardInputKernel {
  size_t rows, width;
  const T* normal;
  const Wide<T>* reciprocal;
  const T* gamma;
  const T* dy;
  T* dx;

  static constexpr uint32_t kThreads = 256, kRows = kThreads / kWarp;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(rows, kRows))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    const size_t row = size_t{block.index().x} * kRows + block.thread() / kWarp;
    if (row >= rows) return;  // the whole warp
    const size_t begin = size_t{block.thread() % kWarp} * N;
    const size_t at = row * width;
    W sum = 0, weighted = 0;  // of the gradients of `normal`, and of their products with it
    for (size_t c = begin; c < width; c += size_t{kWarp} * N) {
      const Pack<T, N> gradient = load<N>(dy + at + c), scale = load<N>(gamma + c);
      const Pack<T, N> value = load<N>(normal + at + c);
      for (int j = 0; j < N; ++j) {
        const W dnormal = widen(gradient.at[j]) * widen(scale.at[j]);
        sum += dnormal;
        weighted = multiply_add(dnormal, widen(value.at[j]), weighted);
      }
    }
    sum = warp_sum(block, sum) / static_cast<W>(width);
    weighted = warp_sum(block, weighted) / static_cast<W>(width);
    const W factor = reciprocal[row];
    for (size_t c = begin; c < width; c += size_t{kWarp} * N) {
      const Pack<T, N> gradient = load<N>(dy + at + c), scale = load<N>(gamma + c);
      const Pack<T, N> value = load<N>(normal + at + c);
      Pack<T, N> to = load<N>(dx + at + c);
      for (int j = 0; j < N; ++j) {
        const W dnormal = widen(gradient.at[j]) * widen(scale.at[j]);
        const W own = multiply_add(-widen(value.at[j]), weighted, dnormal - sum);
        to.at[j] = narrow<T>(multiply_add(factor, own, widen(to.at[j])));
      }
      store(to, dx + at + c);
    }
  }
};

/// Two times partial[slices x width], for AddSlicesKernel: those of dgamma, then those of dbeta. N
/// divides width.
template <class T, int N>
struct LayerNormBackwardParametersKernel {
  size_t rows, width;
  const T* normal;
  const T* dy;
  Wide<T>* partial;

  static constexpr uint32_t kThreads = ColumnTile<T, N>::kThreads;
  ColumnTile<T, N> tile() const { return {rows, width}; }
  Grid grid() const { return tile().grid(); }
  size_t shared_bytes() const { return tile().shared_bytes(); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using ColumnSums = typename ColumnTile<T, N>::ColumnSums;
    struct NormPacks {
      Pack<T, N> gradient, value;
    };
    const auto read = [&](size_t row, size_t column) {
      const size_t i = row * width + column;
      return NormPacks{load<N>(dy + i), load<N>(normal + i)};
    };
    const auto take = [](const NormPacks& both, size_t, size_t, ColumnSums(&terms)[2]) {
      for (int j = 0; j < N; ++j) {
        const Wide<T> gradient = widen(both.gradient.at[j]);
        terms[0].at[j] = gradient * widen(both.value.at[j]);
        terms[1].at[j] = gradient;
      }
    };
    ColumnTile<T, N>{rows, width}.template sum<2>(block, read, take, partial);
  }
};

/// What the two above do, in one pass over memory: a warp keeps a row in shared memory, and the sums of
/// its rows' columns in registers. width is a multiple of kPack<T>, at most kPacks times a warp's packs.
/// partial: as above, but of slices().
template <class T, int kPacks>
struct LayerNormBackwardKernel {
  size_t rows, width;
  const T* normal;
  const Wide<T>* reciprocal;
  const T* gamma;
  const T* dy;
  T* dx;
  Wide<T>* partial;

  static constexpr int kN = kPack<T>;
  static constexpr uint32_t kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr size_t kMostWidth = size_t{kPacks} * kWarp * kN;
  static constexpr size_t kRowsOfSlice =
      64;  // two blocks fit on a multiprocessor, up to three packs

  static constexpr size_t slices(size_t rows) { return ceil_div(rows, kRowsOfSlice); }
  Grid grid() const { return {.x = static_cast<uint32_t>(slices(rows))}; }
  size_t shared_bytes() const { return sizeof(Stage) * kWarps * 2; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    const uint32_t lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    const auto column = [&](uint32_t k) { return (size_t{k} * kWarp + lane) * kN; };
    Pack<T, kN> scale[kPacks] = {};
    unrolled<kPacks>([&](uint32_t k) {
      if (column(k) < width) scale[k] = load<kN>(gamma + column(k));
    });
    Pack<W, kN> dgamma[kPacks] = {}, dbeta[kPacks] = {};
    const size_t first = size_t{block.index().x} * kRowsOfSlice;
    const size_t end = first + kRowsOfSlice < rows ? first + kRowsOfSlice : rows;
    // A warp's next row is on its way while it computes. Each thread uses what it has copied itself.
    Stage* const stages = block.template shared<Stage>() + 2 * warp;
    const auto fetch = [&](size_t row, Stage& to) {
      if (row >= end) return;
      unrolled<kPacks>([&](uint32_t k) {
        const bool inside = column(k) < width;
        const size_t at = inside ? row * width + column(k) : 0;
        block.copy_async(&to.gradient[k][lane], dy + at, inside);
        block.copy_async(&to.value[k][lane], normal + at, inside);
        block.copy_async(&to.dx[k][lane], dx + at, inside);
      });
    };
    uint32_t turn = 0;
    fetch(first + warp, stages[turn]);
    for (size_t row = first + warp; row < end; row += kWarps, turn ^= 1) {
      const Stage& stage = stages[turn];
      const W factor = reciprocal[row];
      block.wait_copies();
      fetch(row + kWarps, stages[turn ^ 1]);
      W sum = 0, weighted = 0;  // of the gradients of `normal`, and of their products with it
      unrolled<kPacks>([&](uint32_t k) {
        const Pack<T, kN> gradient = stage.gradient[k][lane], value = stage.value[k][lane];
        for (int j = 0; j < kN; ++j) {
          const W each = widen(gradient.at[j]), normalised = widen(value.at[j]);
          dgamma[k].at[j] = multiply_add(each, normalised, dgamma[k].at[j]);
          dbeta[k].at[j] += each;
          const W dnormal = each * widen(scale[k].at[j]);
          sum += dnormal;
          weighted = multiply_add(dnormal, normalised, weighted);
        }
      });
      sum = warp_sum(block, sum) / static_cast<W>(width);
      weighted = warp_sum(block, weighted) / static_cast<W>(width);
      after_reads();  // the packs are read again, which takes fewer registers than keeping them
      unrolled<kPacks>([&](uint32_t k) {
        const Pack<T, kN> gradient = stage.gradient[k][lane], value = stage.value[k][lane];
        Pack<T, kN> out = stage.dx[k][lane];
        for (int j = 0; j < kN; ++j) {
          const W dnormal = widen(gradient.at[j]) * widen(scale[k].at[j]);
          const W own = multiply_add(-widen(value.at[j]), weighted, dnormal - sum);
          out.at[j] = narrow<T>(multiply_add(factor, own, widen(out.at[j])));
        }
        if (column(k) < width) store(out, dx + row * width + column(k));
      });
    }
    block.sync();
    add_warps(block, dgamma, partial + size_t{block.index().x} * width);
    block.sync();
    add_warps(block, dbeta, partial + (slices(rows) + block.index().x) * width);
  }

 private:
  /// A row of a warp. Of all of them, at most 96 KiB: GPUs since 8.0 have 99 for a block.
  struct Stage {
    Pack<T, kN> gradient[kPacks][kWarp], value[kPacks][kWarp], dx[kPacks][kWarp];
  };
  static_assert(sizeof(Stage) * 2 >= kMostWidth * sizeof(Wide<T>), "add_warps() has its room");

  /// sums[width]: of all warps.
  template <class Block>
  RONDO_DEVICE void add_warps(Block& block, const Pack<Wide<T>, kN> (&of_warp)[kPacks],
                              Wide<T>* sums) const {
    const uint32_t lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    Wide<T>* const shared = block.template shared<Wide<T>>();
    unrolled<kPacks>([&](uint32_t k) {
      const size_t column = (size_t{k} * kWarp + lane) * kN;
      if (column >= width) return;
      store_packs(of_warp[k], shared + warp * width + column);
    });
    block.sync();
    for (size_t c = block.thread(); c < width; c += kThreads) {
      Wide<T> all = 0;
      for (uint32_t w = 0; w < kWarps; ++w) all += shared[w * width + c];
      sums[c] = all;
    }
  }
};

}  // namespace rondo::trainer::cuda
