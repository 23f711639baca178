// Causal multi-head attention without a context x context matrix in memory (Dao et al. 2022): a
// block takes kTile queries of a head and passes over the keys by tiles, keeping each query's
// largest score and sum of exponentials. Backward computes the scores again, for each tile of
// queries and once more for each tile of keys, so that no two blocks add to one gradient. See
// ../host/attention.hpp for the operands; of the probabilities only their logarithm's offset is
// kept. Heads of any size up to 128 are padded with zeros, in a block's memory only.
//
// Products are sums of single multiplications in float. layers_on_device.hpp uses these kernels for
// float, and for two-byte types where attention_tensor.hpp, which uses tensor cores, does not take the
// head's size or the operands' addresses.
#pragma once

#include "trainer/layers/cuda/dropout.hpp"
#include "trainer/layers/host/attention.hpp"

namespace rondo::trainer::cuda {

/// What both passes do, for heads of at most kSize numbers. A thread has kOwn x kOwn of a tile's scores,
/// and kOwn rows of kSize / kAcross columns of a tile's vectors.
template <class T, int kSize>
struct AttentionTile {
  using W = Wide<T>;
  static constexpr uint32_t kTile = 32, kThreads = 64, kOwn = 4, kAcross = kTile / kOwn;
  static_assert(kThreads == kAcross * kAcross && kSize % kAcross == 0);
  static constexpr uint32_t kColumns = kSize / kAcross;
  static constexpr uint32_t kStride = kSize + 1;  // in shared memory: rows begin in other banks

  const AttentionShape& shape;
  const DropoutFactors& dropout;
  uint32_t thread, sample, head;
  uint32_t size;  // of a head
  W scale;        // of scores

  template <class Block>
  RONDO_DEVICE AttentionTile(const Block& block, const AttentionShape& of,
                             const DropoutFactors& dropped_by)
      : shape(of),
        dropout(dropped_by),
        thread(block.thread()),
        sample(block.index().z),
        head(block.index().y),
        size(static_cast<uint32_t>(shape.width / shape.heads)) {
    using std::sqrt;
    scale = 1 / sqrt(static_cast<W>(size));
  }

  RONDO_DEVICE uint32_t row() const { return thread / kAcross * kOwn; }
  RONDO_DEVICE uint32_t across() const { return thread % kAcross; }
  RONDO_DEVICE size_t stride() const { return 3 * shape.width; }
  /// Where a row of the head begins: of queries (0), keys (1), values (2).
  RONDO_DEVICE size_t in_qkv(uint32_t which, size_t position) const {
    return (sample * shape.context + position) * stride() + which * shape.width + head * size;
  }
  RONDO_DEVICE size_t in_y(size_t position) const {
    return (sample * shape.context + position) * shape.width + head * size;
  }
  RONDO_DEVICE size_t in_sums(size_t position) const {
    return (size_t{sample} * shape.heads + head) * shape.context + position;
  }
  /// to[kTile x kStride] = kTile rows from `first` on; zeros beyond the context and the head.
  template <class Begin>
  RONDO_DEVICE void read(const T* from, size_t first, const Begin& begin, W* to) const {
    for (uint32_t i = thread; i < kTile * kSize; i += kThreads) {
      const size_t position = first + i / kSize;
      const uint32_t column = i % kSize;
      to[i / kSize * kStride + column] =
          position < shape.context && column < size ? widen(from[begin(position) + column]) : W{0};
    }
  }
  /// own = a b^T of this thread's rows of a and every kAcross-th row of b, from across() on.
  RONDO_DEVICE void multiply_rows(const W* a, const W* b, W (&own)[kOwn][kOwn]) const {
    for (uint32_t i = 0; i < kOwn; ++i) {
      for (uint32_t j = 0; j < kOwn; ++j) own[i][j] = 0;
    }
    for (uint32_t c = 0; c < kSize; ++c) {
      W left[kOwn], right[kOwn];
      for (uint32_t i = 0; i < kOwn; ++i) {
        left[i] = a[(row() + i) * kStride + c];
        right[i] = b[(across() + i * kAcross) * kStride + c];
      }
      for (uint32_t i = 0; i < kOwn; ++i) {
        for (uint32_t j = 0; j < kOwn; ++j) {
          own[i][j] = multiply_add(left[i], right[j], own[i][j]);
        }
      }
    }
  }
  /// sums += a b of this thread's rows and every kAcross-th column; a: [kTile x kTile + 1].
  /// kTransposed: a^T in place of a.
  template <bool kTransposed>
  RONDO_DEVICE void add_product(const W* a, const W* b, W (&sums)[kOwn][kColumns]) const {
    for (uint32_t k = 0; k < kTile; ++k) {
      for (uint32_t i = 0; i < kOwn; ++i) {
        const W left =
            kTransposed ? a[k * (kTile + 1) + row() + i] : a[(row() + i) * (kTile + 1) + k];
        for (uint32_t j = 0; j < kColumns; ++j) {
          sums[i][j] = multiply_add(left, b[k * kStride + across() + j * kAcross], sums[i][j]);
        }
      }
    }
  }
  /// Whether this query sees this key, both inside the context.
  RONDO_DEVICE bool sees(size_t query, size_t key) const {
    return key <= query && query < shape.context;
  }
  RONDO_DEVICE W dropped(size_t query, size_t key) const {
    return dropout.factor<W>(sample, (head * shape.context + query) * shape.context + key);
  }
  /// Rows of kColumns sums to memory, those inside the context and the head.
  template <class Begin>
  RONDO_DEVICE void write(const W (&sums)[kOwn][kColumns], size_t first, const Begin& begin,
                          T* to) const {
    for (uint32_t i = 0; i < kOwn; ++i) {
      const size_t position = first + row() + i;
      if (position >= shape.context) continue;
      for (uint32_t j = 0; j < kColumns; ++j) {
        const uint32_t column = across() + j * kAcross;
        if (column < size) to[begin(position) + column] = narrow<T>(sums[i][j]);
      }
    }
  }
};

constexpr Grid attention_grid(const AttentionShape& shape, size_t tile, uint32_t passes = 1) {
  return {.x = static_cast<uint32_t>(ceil_div(shape.context, tile)) * passes,
          .y = static_cast<uint32_t>(shape.heads),
          .z = static_cast<uint32_t>(shape.samples)};
}

/// y[samples x context x width] from qkv[samples x context x 3 width];
/// sums[samples x heads x context]: the logarithm of each query's sum of exp(score), for backward.
/// width / heads is at most kSize.
template <class T, int kSize>
struct AttentionForwardKernel {
  using Tile = AttentionTile<T, kSize>;
  AttentionShape shape;
  DropoutFactors dropout;  // of the probabilities
  const T* qkv;
  Wide<T>* sums;
  T* y;

  static constexpr uint32_t kThreads = Tile::kThreads;
  Grid grid() const { return attention_grid(shape, Tile::kTile); }
  size_t shared_bytes() const {
    return (2 * Tile::kTile * Tile::kStride + Tile::kTile * (Tile::kTile + 1)) * sizeof(Wide<T>);
  }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    using std::exp;
    using std::log;
    constexpr uint32_t kTile = Tile::kTile, kOwn = Tile::kOwn;
    const Tile tile(block, shape, dropout);
    const size_t first = size_t{block.index().x} * kTile;
    W* const q = block.template shared<W>();
    W* const kv = q + kTile * Tile::kStride;        // the tile's keys, then its values
    W* const weights = kv + kTile * Tile::kStride;  // [kTile x kTile + 1]
    const auto queries = [&](size_t p) { return tile.in_qkv(0, p); };
    const auto keys = [&](size_t p) { return tile.in_qkv(1, p); };
    const auto values = [&](size_t p) { return tile.in_qkv(2, p); };
    tile.read(qkv, first, queries, q);
    W largest[kOwn], sum[kOwn], out[kOwn][Tile::kColumns];
    for (uint32_t i = 0; i < kOwn; ++i) {
      largest[i] = -static_cast<W>(INFINITY);
      sum[i] = 0;
      for (uint32_t j = 0; j < Tile::kColumns; ++j) out[i][j] = 0;
    }
    for (size_t key = 0; key <= first; key += kTile) {
      tile.read(qkv, key, keys, kv);
      block.sync();
      W scores[kOwn][kOwn];
      tile.multiply_rows(q, kv, scores);
      block.sync();  // the keys are read
      tile.read(qkv, key, values, kv);
      unrolled<kOwn>([&](uint32_t i) {
        const size_t query = first + tile.row() + i;
        W top = largest[i];
        for (uint32_t j = 0; j < kOwn; ++j) {
          scores[i][j] *= tile.scale;
          const size_t at = key + tile.across() + j * Tile::kAcross;
          if (tile.sees(query, at)) top = larger(scores[i][j], top);
        }
        // The threads of a row are neighbours, kAcross in number.
        for (uint32_t mask = Tile::kAcross / 2; mask > 0; mask /= 2) {
          top = larger(top, block.shuffle_xor(top, mask));
        }
        const W rescale = largest[i] == top ? W{1} : exp(largest[i] - top);
        largest[i] = top;
        W more = 0;
        for (uint32_t j = 0; j < kOwn; ++j) {
          const size_t at = key + tile.across() + j * Tile::kAcross;
          const bool seen = tile.sees(query, at);
          const W weight = seen ? exp(scores[i][j] - top) : W{0};
          more += weight;
          weights[(tile.row() + i) * (kTile + 1) + tile.across() + j * Tile::kAcross] =
              seen ? weight * tile.dropped(query, at) : W{0};
        }
        for (uint32_t mask = Tile::kAcross / 2; mask > 0; mask /= 2) {
          more += block.shuffle_xor(more, mask);
        }
        sum[i] = sum[i] * rescale + more;
        for (uint32_t j = 0; j < Tile::kColumns; ++j) out[i][j] *= rescale;
      });
      block.sync();
      tile.template add_product<false>(weights, kv, out);
      block.sync();  // values and weights are read
    }
    for (uint32_t i = 0; i < kOwn; ++i) {
      const size_t query = first + tile.row() + i;
      for (uint32_t j = 0; j < Tile::kColumns; ++j) out[i][j] /= sum[i];
      if (query < shape.context && tile.across() == 0) {
        sums[tile.in_sums(query)] = largest[i] + log(sum[i]);
      }
    }
    tile.write(
        out, first, [&](size_t p) { return tile.in_y(p); }, y);
  }

 private:
  /// b where a is a NaN: the sum of exponentials does not overlook that.
  RONDO_DEVICE static Wide<T> larger(Wide<T> a, Wide<T> b) { return a > b ? a : b; }
};

/// dqkv[samples x context x 3 width] is written. y and sums are forward's.
template <class T, int kSize>
struct AttentionBackwardKernel {
  using Tile = AttentionTile<T, kSize>;
  AttentionShape shape;
  DropoutFactors dropout;
  const T* qkv;
  const T* y;
  const T* dy;
  const Wide<T>* sums;
  T* dqkv;

  static constexpr uint32_t kThreads = Tile::kThreads;
  /// Blocks with even numbers have tiles of queries, the others tiles of keys.
  Grid grid() const { return attention_grid(shape, Tile::kTile, 2); }
  size_t shared_bytes() const {
    return (4 * Tile::kTile * Tile::kStride + 2 * Tile::kTile * (Tile::kTile + 1) +
            2 * Tile::kTile) *
           sizeof(Wide<T>);
  }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using W = Wide<T>;
    constexpr uint32_t kTile = Tile::kTile;
    const Tile tile(block, shape, dropout);
    const Shared at(block.template shared<W>());
    const size_t own = size_t{block.index().x / 2} * kTile;
    W first[Tile::kOwn][Tile::kColumns] = {}, second[Tile::kOwn][Tile::kColumns] = {};
    if (block.index().x % 2 == 0) {
      read_queries(block, tile, own, at);
      for (size_t key = 0; key <= own; key += kTile) {
        read_keys(tile, key, at);
        block.sync();
        pairs(tile, own, key, at);
        block.sync();
        tile.template add_product<false>(at.dscores, at.k, first);
        block.sync();
      }
      tile.write(
          first, own, [&](size_t p) { return tile.in_qkv(0, p); }, dqkv);
      return;
    }
    read_keys(tile, own, at);
    for (size_t query = own; query < shape.context; query += kTile) {
      read_queries(block, tile, query, at);
      pairs(tile, query, own, at);
      block.sync();
      tile.template add_product<true>(at.dscores, at.q, first);
      tile.template add_product<true>(at.weights, at.dy, second);
      block.sync();
    }
    tile.write(
        first, own, [&](size_t p) { return tile.in_qkv(1, p); }, dqkv);
    tile.write(
        second, own, [&](size_t p) { return tile.in_qkv(2, p); }, dqkv);
  }

 private:
  /// What a block keeps of a tile of queries and a tile of keys.
  struct Shared {
    RONDO_DEVICE explicit Shared(Wide<T>* memory)
        : q(memory),
          dy(q + Tile::kTile * Tile::kStride),
          k(dy + Tile::kTile * Tile::kStride),
          v(k + Tile::kTile * Tile::kStride),
          weights(v + Tile::kTile * Tile::kStride),
          dscores(weights + Tile::kTile * (Tile::kTile + 1)),
          sums(dscores + Tile::kTile * (Tile::kTile + 1)),
          products(sums + Tile::kTile) {}
    Wide<T>*q, *dy, *k, *v;
    Wide<T>* weights;   // the pairs' probabilities after dropout, [kTile x kTile + 1]
    Wide<T>* dscores;   // the gradient of the pairs' scores, with the scale
    Wide<T>* sums;      // of the queries: forward's
    Wide<T>* products;  // y dy
  };

  template <class Block>
  RONDO_DEVICE void read_queries(Block& block, const Tile& tile, size_t first,
                                 const Shared& at) const {
    tile.read(
        qkv, first, [&](size_t p) { return tile.in_qkv(0, p); }, at.q);
    tile.read(
        dy, first, [&](size_t p) { return tile.in_y(p); }, at.dy);
    block.sync();
    if (tile.thread < Tile::kTile) {
      const size_t position = first + tile.thread;
      Wide<T> product = 0;
      for (uint32_t c = 0; c < tile.size && position < shape.context; ++c) {
        product = multiply_add(widen(y[tile.in_y(position) + c]),
                               at.dy[tile.thread * Tile::kStride + c], product);
      }
      at.products[tile.thread] = product;
      at.sums[tile.thread] = position < shape.context ? sums[tile.in_sums(position)] : 0;
    }
    block.sync();
  }

  RONDO_DEVICE void read_keys(const Tile& tile, size_t first, const Shared& at) const {
    tile.read(
        qkv, first, [&](size_t p) { return tile.in_qkv(1, p); }, at.k);
    tile.read(
        qkv, first, [&](size_t p) { return tile.in_qkv(2, p); }, at.v);
  }

  /// weights and dscores of this thread's pairs. The gradient of a score is its probability times
  /// the difference of its probability's gradient and all of them, weighted: y dy.
  RONDO_DEVICE void pairs(const Tile& tile, size_t query_tile, size_t key_tile,
                          const Shared& at) const {
    using W = Wide<T>;
    using std::exp;
    W scores[Tile::kOwn][Tile::kOwn], dweights[Tile::kOwn][Tile::kOwn];
    tile.multiply_rows(at.q, at.k, scores);
    tile.multiply_rows(at.dy, at.v, dweights);
    unrolled<Tile::kOwn>([&](uint32_t i) {
      const uint32_t r = tile.row() + i;
      unrolled<Tile::kOwn>([&](uint32_t j) {
        const uint32_t c = tile.across() + j * Tile::kAcross;
        W weight = 0, dscore = 0;
        if (tile.sees(query_tile + r, key_tile + c)) {
          const W probability = exp(scores[i][j] * tile.scale - at.sums[r]);
          const W factor = tile.dropped(query_tile + r, key_tile + c);
          weight = probability * factor;
          dscore = probability * (dweights[i][j] * factor - at.products[r]) * tile.scale;
        }
        at.weights[r * (Tile::kTile + 1) + c] = weight;
        at.dscores[r * (Tile::kTile + 1) + c] = dscore;
      });
    });
  }
};

}  // namespace rondo::trainer::cuda
