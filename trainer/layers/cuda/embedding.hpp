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

/// A token's places in a batch may be thousands, whose gradients one block would read one after another.
/// So places are sorted by token, and cut into parts of so many, which blocks take at the same time.
inline constexpr uint32_t kPlacesOfPart = 32;
constexpr size_t embedding_parts(size_t symbols) { return ceil_div(symbols, kPlacesOfPart); }
/// Of sums: each part has two of `size` numbers, that of the run of a token which began in an earlier
/// part, and that of one which goes on in the next part.
constexpr size_t embedding_partial(size_t symbols, size_t size) {
  return 2 * embedding_parts(symbols) * size;
}

/// dtable[x[i]] += the sum of dy[i] over the places i of that token, for tokens of which all places are
/// in one part; the sums of others' places go to `partial`, for AddEmbeddingPartsKernel. So no two blocks
/// write one row, and every sum has one order. N divides size.
template <class T, int N>
struct EmbeddingBackwardKernel {
  size_t symbols, size;
  const int32_t* x;
  const int32_t* order;  // [symbols]: all of them, by token, and a token's in ascending order
  const T* dy;
  Wide<T>* partial;  // [embedding_partial()]
  T* dtable;

  static constexpr uint32_t kThreads = 128, kAtOnce = 8;
  Grid grid() const {
    return {.x = static_cast<uint32_t>(embedding_parts(symbols)),
            .y = static_cast<uint32_t>(ceil_div(size, size_t{kThreads} * N))};
  }
  size_t shared_bytes() const { return 2 * kPlaces * sizeof(int32_t); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t begin = size_t{block.index().x} * kPlacesOfPart;
    // Of the part's places, counted from 1, the one before them and the one after them: where there is
    // none, the token is -1.
    int32_t* const symbol = block.template shared<int32_t>();
    int32_t* const token = symbol + kPlaces;
    if (const uint32_t i = block.thread(); i < kPlaces) {
      const bool exists = begin + i > 0 && begin + i <= symbols;
      symbol[i] = order[exists ? begin + i - 1 : begin];
      token[i] = exists ? x[symbol[i]] : -1;
    }
    block.sync();
    const size_t column = (size_t{block.index().y} * kThreads + block.thread()) * N;
    if (column >= size) return;
    const auto last =
        static_cast<uint32_t>(begin + kPlacesOfPart < symbols ? kPlacesOfPart : symbols - begin);
    bool began_before = token[0] == token[1];  // the token whose places come now
    Pack<Wide<T>, N> sums{};
    for (uint32_t first = 1; first <= last; first += kAtOnce) {
      Pack<T, N> gradient[kAtOnce], row[kAtOnce];
      unrolled<kAtOnce>([&](uint32_t j) {
        const uint32_t place = first + j <= last ? first + j : first;
        gradient[j] = load<N>(dy + static_cast<size_t>(symbol[place]) * size + column);
        // A row is written after its token's last place, not before. It is read for every place, because
        // a branch would part the reads.
        row[j] = load<N>(dtable + static_cast<size_t>(token[place]) * size + column);
      });
      after_reads();
      unrolled<kAtOnce>([&](uint32_t j) {
        const uint32_t place = first + j;
        if (place > last) return;
        for (int n = 0; n < N; ++n) sums.at[n] += widen(gradient[j].at[n]);
        const bool goes_on = token[place + 1] == token[place];
        if (goes_on && place < last) return;
        if (began_before || goes_on) {
          const size_t which = 2 * size_t{block.index().x} + (began_before ? 0 : 1);
          store_packs(sums, partial + which * size + column);
        } else {
          Pack<T, N> out;
          for (int n = 0; n < N; ++n) out.at[n] = narrow<T>(widen(row[j].at[n]) + sums.at[n]);
          store_global(out, dtable + static_cast<size_t>(token[place]) * size + column);
        }
        sums = {};
        began_before = false;
      });
    }
  }

 private:
  static constexpr uint32_t kPlaces = kPlacesOfPart + 2;
};

/// The rest: of a token whose places are in several parts, the block of the first one adds what these
/// have left, in order.
template <class T>
struct AddEmbeddingPartsKernel {
  size_t symbols, size;
  const int32_t* x;  // as EmbeddingBackwardKernel's
  const int32_t* order;
  const Wide<T>* partial;
  T* dtable;

  static constexpr uint32_t kThreads = 256, kAtOnce = 16;
  Grid grid() const {
    const size_t parts = embedding_parts(symbols);  // in the last one no token begins that goes on
    return {.x = parts == 0 ? 0 : static_cast<uint32_t>(parts - 1),
            .y = static_cast<uint32_t>(ceil_div(size, kThreads))};
  }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t column = size_t{block.index().y} * kThreads + block.thread();
    const size_t part = block.index().x, begin = part * kPlacesOfPart, end = begin + kPlacesOfPart;
    const int32_t token = x[order[end - 1]];
    if (column >= size || x[order[end]] != token) return;
    if (begin > 0 && x[order[begin - 1]] == token) return;
    T* const to = dtable + static_cast<size_t>(token) * size + column;
    const T before = *to;
    Wide<T> sum = partial[(2 * part + 1) * size + column];
    bool goes_on = true;
    for (size_t first = end; goes_on; first += kAtOnce * kPlacesOfPart) {
      Wide<T> got[kAtOnce];
      bool counts[kAtOnce];
      unrolled<kAtOnce>([&](uint32_t j) {
        const size_t at = first + j * kPlacesOfPart, place = at < symbols ? at : end;
        got[j] = partial[place / kPlacesOfPart * 2 * size + column];
        counts[j] = at < symbols && x[order[place]] == token;
      });
      after_reads();
      unrolled<kAtOnce>([&](uint32_t j) { sum += counts[j] ? got[j] : 0; });
      goes_on = counts[kAtOnce - 1];
    }
    *to = narrow<T>(widen(before) + sum);
  }
};

}  // namespace rondo::trainer::cuda
