// attention.hpp's attention in bfloat16 or half on tensor cores, with the same operands and the same random
// decisions (FlashAttention-2, Dao 2023): forward, and what backward (attention_tensor_backward.hpp)
// shares with it. Scores and sums are float; probabilities are rounded for the product that they
// enter. Refuses heads of other sizes than 32, 64 and 128.
//
// A block of four warps takes a tile of queries, 32 for each warp, and passes over the
// tiles of keys that they see; the next tile is copied to shared memory while one is computed with.
// Scores never leave the registers: as the sums of one product they have the layout of the next
// one's left operand.
//
// Work of a head of S numbers with a context of C, that is C (C + 1) / 2 pairs, and its bounds:
//   Device memory: 4 S operations per pair, and qkv and y once, 8 S bytes per position. At C = 1,024
//   that is 256 operations per byte, and an H100 has about 300.
//   L2 cache: per tile, keys and values, 128 operations per byte.
//   Shared memory: a right operand is 256 bytes for 16 x 8 of a product. Two mma use it; with the
//   queries that is 160 bytes per mma at S = 64 and 192 at 128. A cycle of an SM has 128 bytes, and
//   4,096 operations by tensor cores, which is one mma; mma.sync reaches some 0.6 of that.
//   One exponential per pair: an SM has 16 per cycle. At S = 64 that is one cycle per mma.
// So no bound is above 1.7 cycles per mma. With the two warps per scheduler that registers leave, what
// counts is how much of products and exponentials overlaps: a branch, past which nvcc moves no
// instruction, costs more than what it saves.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "trainer/layers/cuda/attention.hpp"
#include "trainer/layers/cuda/fragments.hpp"

namespace rondo::trainer::cuda {

/// Whether the kernels of this file take heads of this size, and these operands.
inline bool tensor_attention(const AttentionShape& shape,
                             std::initializer_list<const void*> pointers) {
  const size_t size = shape.head_size();
  return (size == 32 || size == 64 || size == 128) &&
         std::all_of(pointers.begin(), pointers.end(), [](const void* pointer) {
           return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
         });
}

/// How many samples' blocks begin together.
inline constexpr uint32_t kTogether = 4;

/// Blocks begin in the order of their numbers, x first: of kTogether samples the tiles with the most
/// pairs before all others, so that the last blocks are short and few multiprocessors wait for a long
/// one. Not of all samples: what the blocks of a head read stays in the L2 cache.
constexpr Grid tensor_attention_grid(const AttentionShape& shape, size_t rows) {
  return {.x = static_cast<uint32_t>(shape.heads),
          .y = static_cast<uint32_t>(ceil_div(shape.context, rows)) * kTogether,
          .z = static_cast<uint32_t>(ceil_div(shape.samples, kTogether))};
}

/// What both passes do, as a thread of one block sees it.
template <int kSize, class Bits>
struct TensorTile {
  static_assert(kSize == 32 || kSize == 64 || kSize == 128);
  static constexpr uint32_t kThreads = 128, kWarps = kThreads / kWarp;
  static constexpr uint32_t kStride = kTileStride<kSize>;
  static constexpr uint32_t kSteps = kSize / 16;  // in which a product goes over a head's numbers
  static constexpr uint32_t kChunks = kSize / kPack<Bits>;  // of 16 bytes, in a row
  static constexpr float kScale = kSize == 32   ? 0.176776695f
                                  : kSize == 64 ? 0.125f
                                                : 0.0883883476f;  // of scores: 1 / sqrt(kSize)
  static constexpr float kLog2E = 1.44269504f;

  /// A head's rows in device memory: of queries, keys or values, or of y.
  template <class T>
  struct HeadRows {
    T* first;
    size_t stride;
  };

  const AttentionShape& shape;
  const DropoutFactors& dropout;
  uint32_t thread, sample, head;
  uint32_t turn;     // of the block's tile among its head's: 0 has the most pairs
  uint64_t key = 0;  // of the dropout

  template <class Block>
  RONDO_DEVICE TensorTile(Block& block, const AttentionShape& of, const DropoutFactors& factors)
      : shape(of),
        dropout(factors),
        thread(block.thread()),
        sample(block.index().z * kTogether + block.index().y % kTogether),
        head(block.index().x),
        turn(block.index().y / kTogether) {
    if (drops() && exists()) key = dropout.key(sample);
  }

  /// Not if there are fewer samples than blocks for them.
  RONDO_DEVICE bool exists() const { return sample < shape.samples; }
  RONDO_DEVICE uint32_t warp() const { return thread / kWarp; }
  /// In a warp's sums this thread has rows g() and g() + 8, columns 2 t() and 2 t() + 1.
  RONDO_DEVICE uint32_t g() const { return thread % kWarp / 4; }
  RONDO_DEVICE uint32_t t() const { return thread % 4; }

  template <class T>
  RONDO_DEVICE HeadRows<T> in_qkv(T* qkv, uint32_t which) const {
    return {qkv + size_t{sample} * shape.context * 3 * shape.width + which * shape.width +
                size_t{head} * kSize,
            3 * shape.width};
  }
  template <class T>
  RONDO_DEVICE HeadRows<T> in_y(T* y) const {
    return {y + size_t{sample} * shape.context * shape.width + size_t{head} * kSize, shape.width};
  }
  RONDO_DEVICE size_t in_sums(size_t position) const {
    return (size_t{sample} * shape.heads + head) * shape.context + position;
  }

  RONDO_DEVICE bool drops() const { return dropout.dropped_below != 0; }
  /// What the sum of exponentials, or a gradient, is multiplied by for the sake of dropout.
  RONDO_DEVICE float kept() const { return drops() ? static_cast<float>(dropout.kept) : 1.0f; }
  /// Whether the probability of this pair is dropped; only if drops().
  RONDO_DEVICE bool dropped(size_t query, size_t at) const {
    return dropout.drops(key + (head * shape.context + query) * shape.context + at);
  }

  /// Of sums of 16 rows that begin at a query and a key, or of transposed ones: bit i is whether the
  /// thread's i-th of `count` pairs is dropped; it has 8 of 16 columns. Four at a time: alone each
  /// waits for its multiplications, all take registers from the products.
  template <bool kTransposed = false>
  RONDO_DEVICE uint32_t dropped_bits(uint32_t count, size_t query, size_t at) const {
    uint32_t bits = 0;
#if defined(__CUDACC__)
#pragma unroll 4
#endif
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t row = g() + i % 4 / 2 * 8, column = i / 4 * 8 + 2 * t() + i % 2;
      const bool is =
          dropped(query + (kTransposed ? column : row), at + (kTransposed ? row : column));
      bits |= uint32_t{is} << i;
    }
    return bits;
  }

  /// Begins to copy kRows rows from `position` on; zeros beyond the context.
  template <uint32_t kRows, class Block>
  RONDO_DEVICE void fetch(Block& block, const HeadRows<const Bits>& from, size_t position,
                          Bits* to) const {
    constexpr uint32_t kAtOnce = kThreads / kChunks;  // rows
    static_assert(kRows % kAtOnce == 0);
    const uint32_t row = thread / kChunks, column = thread % kChunks * kPack<Bits>;
    const Bits* next = from.first + (position + row) * from.stride + column;
    to += row * kStride + column;
    unrolled<kRows / kAtOnce>([&](uint32_t i) {
      const bool inside = position + row + i * kAtOnce < shape.context;
      block.copy_async(to + i * kAtOnce * kStride, inside ? next : from.first, inside);
      next += kAtOnce * from.stride;
    });
  }

  /// Writes 16 kParts rows of this warp's sums, times `factor`, to device memory from `position`
  /// of the block's first row on, those inside the context. `scratch`: the rows of all warps in
  /// shared memory, which no thread reads any more.
  template <uint32_t kParts, class Block>
  RONDO_DEVICE void write(Block& block, const Sums (&sums)[kParts][kSize / 8],
                          const float (&factor)[2 * kParts], size_t position, Bits* scratch,
                          const HeadRows<Bits>& to) const {
    constexpr uint32_t kRows = 16 * kParts * kWarps;
    unrolled<kParts * 2>([&](uint32_t r) {
      const uint32_t row = (warp() * kParts + r / 2) * 16 + r % 2 * 8 + g();
      unrolled<kSize / 8>([&](uint32_t n) {
        const Sums& both = sums[r / 2][n];
        *reinterpret_cast<uint32_t*>(scratch + row * kStride + n * 8 + 2 * t()) =
            pack_pair<Bits>(both[r % 2 * 2] * factor[r], both[r % 2 * 2 + 1] * factor[r]);
      });
    });
    block.sync();
    unrolled<kRows * kChunks / kThreads>([&](uint32_t i) {
      const uint32_t chunk = i * kThreads + thread;
      const uint32_t row = chunk / kChunks, column = chunk % kChunks * kPack<Bits>;
      if (position + row >= shape.context) return;
      store_global(load<kPack<Bits>>(scratch + row * kStride + column),
                   to.first + (position + row) * to.stride + column);
    });
    block.sync();
  }
};

/// See AttentionForwardKernel. kKeys is what leaves registers for two parts.
template <int kSize, class Bits>
struct TensorAttentionForwardKernel {
  using Tile = TensorTile<kSize, Bits>;
  AttentionShape shape;
  DropoutFactors dropout;
  const Bits* qkv;
  float* sums;
  Bits* y;

  static constexpr uint32_t kThreads = Tile::kThreads;
  static constexpr uint32_t kParts = 2;  // of a warp, of 16 queries each
  static constexpr uint32_t kQueries = 16 * kParts * Tile::kWarps;
  static constexpr uint32_t kKeys = kSize <= 64 ? 64 : 32;

  Grid grid() const { return tensor_attention_grid(shape, kQueries); }
  /// The queries; two tiles of keys and of values.
  size_t shared_bytes() const { return (kQueries + 4 * kKeys) * Tile::kStride * sizeof(Bits); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const Tile tile(block, shape, dropout);
    if (!tile.exists()) return;
    // Not decided for each pair: nvcc moves no instruction past a branch, and a warp waits for each.
    tile.drops() ? pass<true>(block, tile) : pass<false>(block, tile);
  }

 private:
  /// Of a warp's queries; by part and row of a thread's two.
  struct QuerySums {
    Sums out[kParts][kSize / 8];
    float largest[2 * kParts];  // score
    float sum[2 * kParts];      // of exponentials, those of this thread's columns
  };

  RONDO_DEVICE static void clear(Sums& sums) {
    unrolled<4>([&](uint32_t e) { sums[e] = 0; });
  }

  template <bool kDrops, class Block>
  RONDO_DEVICE void pass(Block& block, const Tile& tile) const {
    // The last tile sees the most keys.
    const size_t first = (ceil_div(shape.context, kQueries) - 1 - tile.turn) * kQueries;
    const size_t own = first + tile.warp() * 16 * kParts;  // the warp's first query
    const size_t end = first + kQueries < shape.context ? first + kQueries : shape.context;
    Bits* const q = block.template shared<Bits>();
    Bits* const stages = q + kQueries * Tile::kStride;
    const auto fetch_keys = [&](size_t key, uint32_t stage) {
      Bits* const to = stages + stage * 2 * kKeys * Tile::kStride;
      tile.template fetch<kKeys>(block, tile.in_qkv(qkv, 1), key, to);
      tile.template fetch<kKeys>(block, tile.in_qkv(qkv, 2), key, to + kKeys * Tile::kStride);
    };
    tile.template fetch<kQueries>(block, tile.in_qkv(qkv, 0), first, q);
    fetch_keys(0, 0);
    QuerySums state;
    unrolled<kParts>([&](uint32_t m) {
      unrolled<kSize / 8>([&](uint32_t n) { clear(state.out[m][n]); });
      unrolled<2>([&](uint32_t h) {
        state.largest[2 * m + h] = -INFINITY;
        state.sum[2 * m + h] = 0;
      });
    });
    uint32_t stage = 0;
    for (size_t key = 0; key < end; key += kKeys, stage ^= 1) {
      block.wait_copies();
      block.sync();  // this tile is there, and the other stage is no longer read
      if (key + kKeys < end) fetch_keys(key + kKeys, stage ^ 1);
      if (key >= own + 16 * kParts) continue;  // no query of the warp sees these keys
      const Bits* const keys = stages + stage * 2 * kKeys * Tile::kStride;
      add_tile<kDrops>(block, tile, own, key, q + tile.warp() * kParts * 16 * Tile::kStride, keys,
                       keys + kKeys * Tile::kStride, state);
    }
    finish(block, tile, first, own, q, state);
  }

  template <bool kDrops, class Block>
  RONDO_DEVICE void add_tile(Block& block, const Tile& tile, size_t own, size_t key,
                             const Bits* queries, const Bits* keys, const Bits* values,
                             QuerySums& state) const {
    uint32_t dropped[kParts];
    if constexpr (kDrops) {
      unrolled<kParts>(
          [&](uint32_t m) { dropped[m] = tile.dropped_bits(kKeys / 2, own + m * 16, key); });
    }
    Sums scores[kParts][kKeys / 8];
    unrolled<kParts>(
        [&](uint32_t m) { unrolled<kKeys / 8>([&](uint32_t n) { clear(scores[m][n]); }); });
    unrolled<Tile::kSteps>([&](uint32_t step) {
      Fragment q[kParts];
      unrolled<kParts>([&](uint32_t m) {
        load_left<Tile::kStride>(block, queries + m * 16 * Tile::kStride + step * 16, q[m]);
      });
      unrolled<kKeys / 16>([&](uint32_t c) {
        Fragment b;
        load_right_of_rows<Tile::kStride>(block, keys + c * 16 * Tile::kStride + step * 16, b);
        unrolled<kParts>([&](uint32_t m) {
          multiply_fragments<Bits>(block, q[m], b, scores[m][2 * c], scores[m][2 * c + 1]);
        });
      });
    });
    if (key + kKeys > own + 1) {  // some query of the warp does not see some of these keys
      unrolled<2 * kParts>([&](uint32_t r) {
        const size_t query = own + r / 2 * 16 + r % 2 * 8 + tile.g();
        const auto last = static_cast<uint32_t>(query - key);  // that it sees; there is one
        unrolled<kKeys / 4>([&](uint32_t i) {
          const uint32_t n = i / 2, e = i % 2;
          if (n * 8 + 2 * tile.t() + e > last) scores[r / 2][n][r % 2 * 2 + e] = -INFINITY;
        });
      });
    }
    unrolled<2 * kParts>([&](uint32_t r) { weigh(block, r, scores[r / 2], state); });
    unrolled<kKeys / 16>([&](uint32_t c) {
      Fragment weights[kParts];
      unrolled<kParts>([&](uint32_t m) {
        if constexpr (kDrops) {
          unrolled<8>([&](uint32_t i) {
            if (dropped[m] >> (c * 8 + i) & 1) scores[m][2 * c + i / 4][i % 4] = 0;
          });
        }
        round_to_left<Bits>(scores[m][2 * c], scores[m][2 * c + 1], weights[m]);
      });
      unrolled<Tile::kSteps>([&](uint32_t n) {
        Fragment b;
        load_right<Tile::kStride>(block, values + c * 16 * Tile::kStride + n * 16, b);
        unrolled<kParts>([&](uint32_t m) {
          multiply_fragments<Bits>(block, weights[m], b, state.out[m][2 * n],
                                   state.out[m][2 * n + 1]);
        });
      });
    });
  }

  /// Makes exponentials of the scores of row r, relative to the largest so far.
  template <class Block>
  RONDO_DEVICE void weigh(Block& block, uint32_t r, Sums (&scores)[kKeys / 8],
                          QuerySums& state) const {
    constexpr float kScale = Tile::kScale * Tile::kLog2E;
    const uint32_t half = r % 2 * 2;
    float top = state.largest[r];
    unrolled<kKeys / 8>(
        [&](uint32_t n) { top = larger(larger(top, scores[n][half]), scores[n][half + 1]); });
    top = larger(top, block.shuffle_xor(top, 1));
    top = larger(top, block.shuffle_xor(top, 2));
    const float rescale = power_of_two((state.largest[r] - top) * kScale);
    const float offset = -top * kScale;
    state.largest[r] = top;
    float more = 0;
    unrolled<kKeys / 8>([&](uint32_t n) {
      unrolled<2>([&](uint32_t e) {
        float& weight = scores[n][half + e];
        weight = power_of_two(multiply_add(weight, kScale, offset));
        more += weight;
      });
    });
    state.sum[r] = multiply_add(state.sum[r], rescale, more);
    unrolled<kSize / 8>([&](uint32_t n) {
      state.out[r / 2][n][half] *= rescale;
      state.out[r / 2][n][half + 1] *= rescale;
    });
  }

  template <class Block>
  RONDO_DEVICE void finish(Block& block, const Tile& tile, size_t first, size_t own, Bits* scratch,
                           QuerySums& state) const {
    float factor[2 * kParts];
    unrolled<2 * kParts>([&](uint32_t r) {
      float sum = state.sum[r];
      sum += block.shuffle_xor(sum, 1);
      sum += block.shuffle_xor(sum, 2);
      factor[r] = tile.kept() / sum;
      const size_t query = own + r / 2 * 16 + r % 2 * 8 + tile.g();
      if (tile.t() == 0 && query < shape.context) {
        using std::log;
        sums[tile.in_sums(query)] = multiply_add(state.largest[r], Tile::kScale, log(sum));
      }
    });
    tile.write(block, state.out, factor, first, scratch, tile.in_y(y));
  }

  /// Not a NaN where there is a number: the sum of exponentials does not overlook one.
  RONDO_DEVICE static float larger(float a, float b) {
    using std::fmax;
    return fmax(a, b);
  }
};

}  // namespace rondo::trainer::cuda
