// Backward of attention_tensor.hpp: two kernels. Blocks of tiles of queries make dq, and y dy of each
// query; then blocks of tiles of keys make dk and dv, from scores that are transposed, so that as
// sums of one product they have the layout of the next one's left operand. Both compute the
// probabilities again from forward's sums, so that no two blocks add to one gradient. Probabilities
// and gradients of scores are rounded for the products that they enter.
//
// Bounds, as in attention_tensor.hpp:
//   Device memory: 14 S operations per pair (seven products; five if blocks added to one gradient) and
//   24 S bytes per position. At C = 1,024 that is 300 operations per byte.
//   L2 cache: at S = 64 192 operations per byte in blocks of queries, and 256 in those of keys.
//   Shared memory: two mma use a right operand; at S = 64 that is 128 bytes per mma for queries, and
//   with the values, which are not kept in registers, 192 for keys.
//   Exponentials: two per pair, 0.3 cycles per mma.
#pragma once

#include "trainer/layers/cuda/attention_tensor.hpp"

namespace rondo::trainer::cuda {

enum class AttentionSide { kQueries, kKeys };

/// See AttentionBackwardKernel. Two kernels, of which the second one needs what the first one leaves:
/// blocks of tiles of queries make dq, and `products`; then those of tiles of keys make dk and dv,
/// from transposed scores. Both pass over the other side by tiles of kAcross rows.
/// kDrops: whether there is dropout. Its random numbers take registers, of which the other kernels
/// then have more.
template <int kSize, class Bits, AttentionSide kSide, bool kDrops>
struct TensorAttentionBackwardKernel {
  using Tile = TensorTile<kSize, Bits>;
  AttentionShape shape;
  DropoutFactors dropout;
  const Bits* qkv;
  const Bits* y;
  const Bits* dy;
  const float* sums;
  float* products;  // [samples x heads x context]: y dy of each query and head
  Bits* dqkv;

  static constexpr uint32_t kThreads = Tile::kThreads;
  static constexpr uint32_t kParts = kSize <= 64 ? 2 : 1;       // of a warp, of 16 rows each
  static constexpr uint32_t kOwn = 16 * kParts * Tile::kWarps;  // rows of a block
  static constexpr uint32_t kAcross = kSize <= 64 ? 64 : 32;
  static constexpr uint32_t kStride = Tile::kStride;

  Grid grid() const { return tensor_attention_grid(shape, kOwn); }
  /// Two tiles of the block's own; two stages of two tiles of the other side; two numbers for each
  /// query, of the block or of a stage.
  size_t shared_bytes() const {
    return (2 * kOwn + 4 * kAcross) * kStride * sizeof(Bits) + kNumbers * sizeof(float);
  }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const Tile tile(block, shape, dropout);
    if (!tile.exists()) return;
    const BackwardTiles at(block.template shared<Bits>());
    // The first keys and the last queries have the most pairs.
    if constexpr (kSide == AttentionSide::kKeys) {
      pass_keys(block, tile, tile.turn * kOwn, at);
    } else {
      pass_queries(block, tile, (ceil_div(shape.context, kOwn) - 1 - tile.turn) * kOwn, at);
    }
  }

 private:
  static constexpr uint32_t kNumbers = 4 * kAcross;
  static_assert(2 * kOwn <= kNumbers && 2 * kAcross <= kThreads);
  struct BackwardTiles {
    RONDO_DEVICE explicit BackwardTiles(Bits* memory)
        : first(memory),
          second(first + kOwn * kStride),
          stages(second + kOwn * kStride),
          numbers(reinterpret_cast<float*>(stages + 4 * kAcross * kStride)) {}
    RONDO_DEVICE Bits* of_stage(uint32_t stage, uint32_t which) const {
      return stages + (stage * 2 + which) * kAcross * kStride;
    }
    Bits *first, *second;  // the block's own: keys and values, or queries and dy
    Bits* stages;
    float* numbers;  // of queries: offsets, which are forward's sums as exponents of two; then y dy
  };
  /// Of a warp's rows and 16 rows of the other side: scores, or the gradients of probabilities.
  using Pairs = Sums[kParts][2];
  static constexpr float kExponent = Tile::kScale * Tile::kLog2E;

  RONDO_DEVICE float offset(const Tile& tile, size_t query) const {
    return query < shape.context ? sums[tile.in_sums(query)] * Tile::kLog2E : 0.0f;
  }

  /// Numbers of the block's queries from `query` on; and `products`.
  template <class Block>
  RONDO_DEVICE void sum_queries(Block& block, const Tile& tile, size_t query, const Bits* outputs,
                                const BackwardTiles& at) const {
    constexpr uint32_t kShare = kThreads / kOwn;  // threads for a row
    constexpr uint32_t kChunks = Tile::kChunks / kShare;
    const uint32_t row = tile.thread / kShare;
    const uint32_t begin = row * kStride + tile.thread % kShare * kChunks * kPack<Bits>;
    float product = 0;
    unrolled<kChunks>([&](uint32_t i) {
      const auto a = load<kPack<Bits>>(outputs + begin + i * kPack<Bits>);
      const auto b = load<kPack<Bits>>(at.second + begin + i * kPack<Bits>);
      unrolled<kPack<Bits>>(
          [&](uint32_t j) { product = multiply_add(widen(a.at[j]), widen(b.at[j]), product); });
    });
    for (uint32_t mask = kShare / 2; mask > 0; mask /= 2) {
      product += block.shuffle_xor(product, mask);
    }
    if (tile.thread % kShare == 0) {
      at.numbers[row] = offset(tile, query + row);
      at.numbers[kOwn + row] = product;
      if (query + row < shape.context) products[tile.in_sums(query + row)] = product;
    }
  }

  /// What this thread carries to shared memory of the numbers of kAcross queries from `query` on.
  RONDO_DEVICE float number(const Tile& tile, size_t query) const {
    query += tile.thread % kAcross;
    if (tile.thread < kAcross) return offset(tile, query);
    return query < shape.context ? products[tile.in_sums(query)] : 0.0f;
  }

  /// A warp's rows of a tile, as left operands.
  using OwnRows = Fragment[kParts][Tile::kSteps];
  template <class Block>
  RONDO_DEVICE static void load_own(Block& block, const Bits* rows, OwnRows& own) {
    unrolled<kParts * Tile::kSteps>([&](uint32_t i) {
      const uint32_t part = i / Tile::kSteps, step = i % Tile::kSteps;
      load_left<kStride>(block, rows + part * 16 * kStride + step * 16, own[part][step]);
    });
  }
  /// pairs += of a warp's rows and 16 rows of the other side.
  template <class Block>
  RONDO_DEVICE static void multiply_pairs(Block& block, const OwnRows& own, const Bits* other,
                                          Pairs& pairs) {
    unrolled<Tile::kSteps>([&](uint32_t step) {
      Fragment b;
      load_right_of_rows<kStride>(block, other + step * 16, b);
      unrolled<kParts>([&](uint32_t m) {
        multiply_fragments<Bits>(block, own[m][step], b, pairs[m][0], pairs[m][1]);
      });
    });
  }
  /// Likewise of rows in shared memory.
  template <class Block>
  RONDO_DEVICE static void multiply_pairs(Block& block, const Bits* own, const Bits* other,
                                          Pairs& pairs) {
    unrolled<Tile::kSteps>([&](uint32_t step) {
      Fragment a, b;
      load_right_of_rows<kStride>(block, other + step * 16, b);
      unrolled<kParts>([&](uint32_t m) {
        load_left<kStride>(block, own + m * 16 * kStride + step * 16, a);
        multiply_fragments<Bits>(block, a, b, pairs[m][0], pairs[m][1]);
      });
    });
  }
  /// Turns a score into its probability after dropout, but for the factor of those kept, and a
  /// dweight into the gradient of the score, but for the scale.
  RONDO_DEVICE static void differentiate(bool dropped, float offset_of_query, float product,
                                         float kept, float& score, float& dweight) {
    const float probability = power_of_two(multiply_add(score, kExponent, -offset_of_query));
    score = probability;
    if constexpr (kDrops) {
      if (dropped) score = 0;
      dweight = dropped ? 0.0f : dweight * kept;
    }
    dweight = probability * (dweight - product);
  }
  template <class Block>
  RONDO_DEVICE static void add_product(Block& block, const Fragment (&a)[kParts], const Bits* right,
                                       Sums (&to)[kParts][kSize / 8]) {
    unrolled<Tile::kSteps>([&](uint32_t n) {
      Fragment b;
      load_right<kStride>(block, right + n * 16, b);
      unrolled<kParts>([&](uint32_t m) {
        multiply_fragments<Bits>(block, a[m], b, to[m][2 * n], to[m][2 * n + 1]);
      });
    });
  }
  template <class Block>
  RONDO_DEVICE static void write(Block& block, const Tile& tile,
                                 const Sums (&gradient)[kParts][kSize / 8], float factor,
                                 size_t first, const BackwardTiles& at,
                                 const typename Tile::template HeadRows<Bits>& to) {
    float factors[2 * kParts];
    unrolled<2 * kParts>([&](uint32_t r) { factors[r] = factor; });
    tile.write(block, gradient, factors, first, at.first, to);
  }

  template <class Block>
  RONDO_DEVICE void pass_queries(Block& block, const Tile& tile, size_t first,
                                 const BackwardTiles& at) const {
    const uint32_t warp_row = tile.warp() * 16 * kParts;
    const size_t own = first + warp_row;  // the warp's first query
    const size_t end = first + kOwn < shape.context ? first + kOwn : shape.context;
    const auto fetch_keys = [&](size_t key, uint32_t stage) {
      tile.template fetch<kAcross>(block, tile.in_qkv(qkv, 1), key, at.of_stage(stage, 0));
      tile.template fetch<kAcross>(block, tile.in_qkv(qkv, 2), key, at.of_stage(stage, 1));
    };
    Bits* const outputs = at.of_stage(1, 0);  // of both tiles
    static_assert(kOwn <= 2 * kAcross);
    tile.template fetch<kOwn>(block, tile.in_qkv(qkv, 0), first, at.first);
    tile.template fetch<kOwn>(block, tile.in_y(dy), first, at.second);
    tile.template fetch<kOwn>(block, tile.in_y(y), first, outputs);
    fetch_keys(0, 0);
    block.wait_copies();
    block.sync();
    sum_queries(block, tile, first, outputs, at);
    block.sync();
    OwnRows queries, gradients;
    load_own(block, at.first + warp_row * kStride, queries);
    load_own(block, at.second + warp_row * kStride, gradients);
    float offset_of[2 * kParts], product_of[2 * kParts];
    unrolled<2 * kParts>([&](uint32_t r) {
      offset_of[r] = at.numbers[warp_row + r * 8 + tile.g()];
      product_of[r] = at.numbers[kOwn + warp_row + r * 8 + tile.g()];
    });
    Sums dq[kParts][kSize / 8] = {};
    const float kept = tile.kept();
    uint32_t stage = 0;
    for (size_t key = 0; key < end; key += kAcross, stage ^= 1) {
      block.wait_copies();
      block.sync();
      if (key + kAcross < end) fetch_keys(key + kAcross, stage ^ 1);
      for (uint32_t part = 0; part < kAcross && key + part < own + 16 * kParts; part += 16) {
        const Bits* const keys = at.of_stage(stage, 0) + part * kStride;
        uint32_t dropped[kParts] = {};
        if constexpr (kDrops) {
          unrolled<kParts>(
              [&](uint32_t m) { dropped[m] = tile.dropped_bits(8, own + m * 16, key + part); });
        }
        Pairs scores = {}, dweights = {};
        multiply_pairs(block, queries, keys, scores);
        if (key + part + 16 > own + 1) {  // some query does not see some of these keys
          const auto before = static_cast<int32_t>(key + part - own);
          unrolled<8 * kParts>([&](uint32_t i) {
            const uint32_t row = i / 8 * 16 + i % 4 / 2 * 8 + tile.g();
            const uint32_t column = i / 4 % 2 * 8 + 2 * tile.t() + i % 2;
            if (before + static_cast<int32_t>(column) > static_cast<int32_t>(row)) {
              scores[i / 8][i / 4 % 2][i % 4] = -INFINITY;
            }
          });
        }
        multiply_pairs(block, gradients, at.of_stage(stage, 1) + part * kStride, dweights);
        Fragment dscores[kParts];
        unrolled<kParts>([&](uint32_t m) {
          unrolled<8>([&](uint32_t i) {
            const uint32_t r = 2 * m + i % 4 / 2;
            differentiate(dropped[m] >> i & 1, offset_of[r], product_of[r], kept,
                          scores[m][i / 4][i % 4], dweights[m][i / 4][i % 4]);
          });
          round_to_left<Bits>(dweights[m][0], dweights[m][1], dscores[m]);
        });
        add_product(block, dscores, keys, dq);
      }
    }
    block.sync();  // the queries are no longer read
    write(block, tile, dq, Tile::kScale, first, at, tile.in_qkv(dqkv, 0));
  }

  template <class Block>
  RONDO_DEVICE void pass_keys(Block& block, const Tile& tile, uint32_t first,
                              const BackwardTiles& at) const {
    const auto context =
        static_cast<uint32_t>(shape.context);  // positions in 32 bits: fewer registers
    const uint32_t warp_row = tile.warp() * 16 * kParts;
    const uint32_t own = first + warp_row;  // the warp's first key
    const auto fetch_queries = [&](uint32_t query, uint32_t stage) {
      tile.template fetch<kAcross>(block, tile.in_qkv(qkv, 0), query, at.of_stage(stage, 0));
      tile.template fetch<kAcross>(block, tile.in_y(dy), query, at.of_stage(stage, 1));
    };
    tile.template fetch<kOwn>(block, tile.in_qkv(qkv, 1), first, at.first);
    tile.template fetch<kOwn>(block, tile.in_qkv(qkv, 2), first, at.second);
    fetch_queries(first, 0);
    OwnRows keys;  // where random numbers leave registers for them; values are read again and again
    const Bits* const values = at.second + warp_row * kStride;
    Sums dk[kParts][kSize / 8] = {}, dv[kParts][kSize / 8] = {};
    const float kept = tile.kept();
    float next = number(tile, first);
    uint32_t stage = 0;
    for (uint32_t query = first; query < context; query += kAcross, stage ^= 1) {
      float* const numbers = at.numbers + stage * 2 * kAcross;
      if (tile.thread < 2 * kAcross) numbers[tile.thread] = next;
      block.wait_copies();
      block.sync();
      if (!kDrops && query == first) load_own(block, at.first + warp_row * kStride, keys);
      if (query + kAcross < context) fetch_queries(query + kAcross, stage ^ 1);
      next = number(tile, query + kAcross);
      for (uint32_t part = 0; part < kAcross; part += 16) {
        if (query + part < own) continue;  // these see none of the warp's keys
        const Bits* const queries = at.of_stage(stage, 0) + part * kStride;
        const Bits* const gradients = at.of_stage(stage, 1) + part * kStride;
        uint32_t dropped[kParts] = {};
        if constexpr (kDrops) {
          unrolled<kParts>([&](uint32_t m) {
            dropped[m] = tile.template dropped_bits<true>(8, query + part, own + m * 16);
          });
        }
        Pairs scores = {}, dweights = {};  // rows are keys
        if constexpr (kDrops) {
          multiply_pairs(block, at.first + warp_row * kStride, queries, scores);
        } else {
          multiply_pairs(block, keys, queries, scores);
        }
        if (query + part + 1 < own + 16 * kParts) {  // some query does not see some of the keys
          const auto behind = static_cast<int32_t>(query + part - own);
          unrolled<8 * kParts>([&](uint32_t i) {
            const uint32_t row = i / 8 * 16 + i % 4 / 2 * 8 + tile.g();
            const uint32_t column = i / 4 % 2 * 8 + 2 * tile.t() + i % 2;
            if (static_cast<int32_t>(row) > behind + static_cast<int32_t>(column)) {
              scores[i / 8][i / 4 % 2][i % 4] = -INFINITY;
            }
          });
        }
        multiply_pairs(block, values, gradients, dweights);
        Fragment weights[kParts], dscores[kParts];
        unrolled<kParts>([&](uint32_t m) {
          unrolled<8>([&](uint32_t i) {
            const uint32_t column = part + i / 4 * 8 + 2 * tile.t() + i % 2;
            differentiate(dropped[m] >> i & 1, numbers[column], numbers[kAcross + column], kept,
                          scores[m][i / 4][i % 4], dweights[m][i / 4][i % 4]);
          });
          round_to_left<Bits>(scores[m][0], scores[m][1], weights[m]);
          round_to_left<Bits>(dweights[m][0], dweights[m][1], dscores[m]);
        });
        add_product(block, weights, gradients, dv);
        add_product(block, dscores, queries, dk);
      }
    }
    block.sync();  // keys and values are no longer read
    write(block, tile, dk, Tile::kScale, first, at, tile.in_qkv(dqkv, 1));
    write(block, tile, dv, kept, first, at, tile.in_qkv(dqkv, 2));
  }
};

}  // namespace rondo::trainer::cuda
