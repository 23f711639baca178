// Look-ups in a table, with the positions' embeddings, and their gradients in a fixed order. See
// ../host/layers.hpp.
#pragma once

#include "trainer/layers/cuda/dropout.hpp"

namespace rondo::trainer::cuda {

/// y[symbols x size] = table[x[i]] + positions[i % context], after dropout. A sample is `context`
/// symbols. N divides size.
template <class T, int N>
struct EmbeddingForwardKernel {
  size_t symbols, size, context;
  const int32_t* x;
  const T* table;
  const T* positions;  // [context x size]; null: none are added
  DropoutFactors dropout;
  T* y;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(symbols * size / N, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = (size_t{block.index().x} * kThreads + block.thread()) * N;
    if (i >= symbols * size) return;
    const size_t symbol = i / size, column = i % size, in_sample = symbol % context * size + column;
    Pack<T, N> out = load<N>(table + static_cast<size_t>(x[symbol]) * size + column);
    Pack<T, N> position{};
    if (positions != nullptr) position = load<N>(positions + in_sample);
    for (int j = 0; j < N; ++j) {
      Wide<T> value = widen(out.at[j]);
      if (positions != nullptr) value += widen(position.at[j]);
      out.at[j] = narrow<T>(value * dropout.factor<Wide<T>>(symbol / context, in_sample + j));
    }
    store(out, y + i);
  }
};

/// dtable[used[u]] += the sum of dy[order[i]], i from begins[u] to begins[u + 1], for every row
/// that was looked up. The host sorts the symbols' numbers by what they looked up, each row's in
/// ascending order; so no two blocks write one row, and every sum has one order. N divides size.
template <class T, int N>
struct EmbeddingBackwardKernel {
  size_t rows_used, size;
  const int32_t* used;    // [rows_used], different rows of the table
  const int32_t* begins;  // [rows_used + 1], into `order`
  const int32_t* order;
  const T* dy;
  T* dtable;

  static constexpr uint32_t kThreads = 128;
  Grid grid() const {
    return {.x = static_cast<uint32_t>(rows_used),
            .y = static_cast<uint32_t>(ceil_div(size, size_t{kThreads} * N))};
  }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t column = (size_t{block.index().y} * kThreads + block.thread()) * N;
    if (column >= size) return;
    const uint32_t row = block.index().x;
    Pack<Wide<T>, N> sums{};
    for (int32_t i = begins[row]; i < begins[row + 1]; ++i) {
      const Pack<T, N> pack = load<N>(dy + static_cast<size_t>(order[i]) * size + column);
      for (int j = 0; j < N; ++j) sums.at[j] += widen(pack.at[j]);
    }
    T* const to = dtable + static_cast<size_t>(used[row]) * size + column;
    Pack<T, N> out = load<N>(to);
    for (int j = 0; j < N; ++j) out.at[j] = narrow<T>(widen(out.at[j]) + sums.at[j]);
    store(out, to);
  }
};

}  // namespace rondo::trainer::cuda
