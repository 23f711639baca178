// GELU with the bias before it and that bias's gradient. See ../host/gelu.hpp, whose formulas these
// are.
#pragma once

#include "trainer/layers/cuda/rows.hpp"

namespace rondo::trainer::cuda {

/// y = gelu(x + bias), and x becomes the derivative there. x, y: [rows x width]; bias: [width]. N
/// divides width.
template <class T, int N>
struct GeluForwardKernel {
  size_t rows, width;
  const T* bias;
  T* x;
  T* y;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(rows * width / N, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    using std::fabs;
    const size_t i = (size_t{block.index().x} * kThreads + block.thread()) * N;
    if (i >= rows * width) return;
    Pack<T, N> in = load<N>(x + i), out;
    const Pack<T, N> added = load<N>(bias + i % width);
    for (int j = 0; j < N; ++j) {
      // (1 + tanh u) / 2 is the logistic function of v = 2u = at (a + b at^2).
      constexpr W kA = W(1.5957691216057307), kB = W(0.044715 * 1.5957691216057307);
      const W at = widen(in.at[j]) + widen(added.at[j]);
      const W square = at * at;
      const W v = at * multiply_add(kB, square, kA);
      const W slope = multiply_add(3 * kB, square, kA);  // dv/d(at)
      const W e = exponential(-fabs(v));
      const W upper = reciprocal(1 + e);  // the logistic function of |v|
      const W lower = e * upper;          // and of -|v|
      const W logistic = v < 0 ? lower : upper;
      out.at[j] = narrow<T>(at * logistic);
      // Far out lower is 0 and at * slope may be infinite; at * lower comes first.
      in.at[j] = narrow<T>(multiply_add(at * (upper * lower), slope, logistic));
    }
    store(out, y + i);
    store(in, x + i);
  }
};

/// In place on the gradient of y: times `derivative`; partial[slices x width]: the sums of its
/// columns, for AddSlicesKernel. N divides width.
template <class T, int N>
struct GeluBackwardKernel {
  size_t rows, width;
  const T* derivative;
  T* dy;
  Wide<T>* partial;

  static constexpr uint32_t kThreads = ColumnTile<T, N>::kThreads;
  ColumnTile<T, N> tile() const { return {rows, width}; }
  Grid grid() const { return tile().grid(); }
  size_t shared_bytes() const { return tile().shared_bytes(); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using ColumnSums = typename ColumnTile<T, N>::ColumnSums;
    struct GeluPacks {
      Pack<T, N> gradient, slope;
    };
    const auto read = [&](size_t row, size_t column) {
      const size_t i = row * width + column;
      return GeluPacks{load<N>(dy + i), load<N>(derivative + i)};
    };
    const auto take = [&](const GeluPacks& both, size_t row, size_t column, ColumnSums(&terms)[1]) {
      Pack<T, N> dx;
      for (int j = 0; j < N; ++j) {
        dx.at[j] = narrow<T>(widen(both.gradient.at[j]) * widen(both.slope.at[j]));
        terms[0].at[j] = widen(dx.at[j]);
      }
      store(dx, dy + row * width + column);
    };
    ColumnTile<T, N>{rows, width}.template sum<1>(block, read, take, partial);
  }
};

}  // namespace rondo::trainer::cuda
