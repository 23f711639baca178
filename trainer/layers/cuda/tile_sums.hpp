// The product of two tiles in shared memory, summed up in the registers of a block: by
// tensor cores in types of two bytes (fragments.hpp), else by multiplications of single numbers.
//
// Both tiles have their rows along the sum, kStride elements apart: an odd number of packs. Eight
// rows that a quarter of a warp reads at once then begin in eight different groups of four banks.
#pragma once

#include "trainer/layers/cuda/fragments.hpp"

namespace rondo::trainer::cuda {

/// How deep TileSums::add() is.
inline constexpr uint32_t kTileChunk = 16;

/// sums[kM x kN] += left[kM x kTileChunk] right[kN x kTileChunk]^T, each time. Of a thread: every
/// 16th column, and as many rows as make all.
template <class T, uint32_t kThreads, uint32_t kM, uint32_t kN, uint32_t kStride>
class TileSums {
 public:
  using Value = Wide<T>;
  /// From a row of store() to the next, so that a warp's threads write to different banks.
  static constexpr uint32_t kOutStride = kN + 16;

  template <class Block>
  RONDO_DEVICE void add(Block& block, const T* left, const T* right) {
    constexpr uint32_t kN0 = kN / kAcross, kPacked = kPack<T>;
    left += block.thread() / kAcross * kStride;
    right += block.thread() % kAcross * kStride;
    unrolled<kTileChunk / kPacked>([&](uint32_t k) {
      Pack<T, kPacked> b[kN0];
      unrolled<kN0>(
          [&](uint32_t n) { b[n] = load<kPacked>(right + n * kAcross * kStride + k * kPacked); });
      unrolled<kM / kDown>([&](uint32_t m) {
        const auto a = load<kPacked>(left + m * kDown * kStride + k * kPacked);
        unrolled<kPacked * kN0>([&](uint32_t i) {
          Value& sum = sums_[m][i % kN0];
          sum = multiply_add(a.at[i / kN0], b[i % kN0].at[i / kN0], sum);
        });
      });
    });
  }

  /// to[kM x kOutStride] = the sums, in shared memory.
  template <class Block>
  RONDO_DEVICE void store(Block& block, Value* to) const {
    to += block.thread() / kAcross * kOutStride + block.thread() % kAcross;
    unrolled<kM / kDown>([&](uint32_t m) {
      unrolled<kN / kAcross>(
          [&](uint32_t n) { to[m * kDown * kOutStride + n * kAcross] = sums_[m][n]; });
    });
  }

 private:
  static constexpr uint32_t kAcross = 16, kDown = kThreads / kAcross;
  Value sums_[kM / kDown][kN / kAcross] = {};
};

/// Likewise by tensor cores. Warps lie side by side, or in two rows.
template <class T, uint32_t kThreads, uint32_t kM, uint32_t kN, uint32_t kStride>
requires(sizeof(T) == 2) class TileSums<T, kThreads, kM, kN, kStride> {
 public:
  using Value = float;
  static constexpr uint32_t kOutStride = kN + 8;

  template <class Block>
  RONDO_DEVICE void add(Block& block, const T* left, const T* right) {
    left += row(block) * kStride;
    right += column(block) * kStride;
    Fragment a[kParts];
    unrolled<kParts>([&](uint32_t m) { load_left<kStride>(block, left + m * 16 * kStride, a[m]); });
    unrolled<kColumns>([&](uint32_t n) {
      Fragment b;
      load_right_of_rows<kStride>(block, right + n * 16 * kStride, b);
      unrolled<kParts>([&](uint32_t m) {
        multiply_fragments<T>(block, a[m], b, sums_[m][2 * n], sums_[m][2 * n + 1]);
      });
    });
  }

  template <class Block>
  RONDO_DEVICE void store(Block& block, float* to) const {
    const uint32_t lane = block.thread() % kWarp;
    to += (row(block) + lane / 4) * kOutStride + column(block) + lane % 4 * 2;
    unrolled<kParts * 4 * kColumns>([&](uint32_t i) {
      const uint32_t m = i / (4 * kColumns), n = i / 2 % (2 * kColumns), half = i % 2;
      const Sums& sums = sums_[m][n];
      store_pair(sums[2 * half], sums[2 * half + 1], to + (m * 16 + half * 8) * kOutStride + n * 8);
    });
  }

 private:
  static constexpr uint32_t kDown = kM == 64 ? 2 : 1, kAcross = kThreads / kWarp / kDown;
  static constexpr uint32_t kParts = kM / kDown / 16, kColumns = kN / kAcross / 16;

  /// Of the warp's first sum.
  template <class Block>
  RONDO_DEVICE static uint32_t row(Block& block) {
    return block.thread() / kWarp / kAcross * 16 * kParts;
  }
  template <class Block>
  RONDO_DEVICE static uint32_t column(Block& block) {
    return block.thread() / kWarp % kAcross * 16 * kColumns;
  }
  RONDO_DEVICE static void store_pair(float first, float second, float* to) {
    cuda::store<2>(Pack<float, 2>{first, second}, to);
  }

  Sums sums_[kParts][2 * kColumns] = {};
};

}  // namespace rondo::trainer::cuda
