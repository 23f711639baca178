// Matrix products of a warp by tensor cores: operands from tiles of two-byte numbers in shared memory, or
// from a product's sums in registers. The layout of operands and sums is Block's (block.hpp).
//
// A tile's rows lie kSize + 8 numbers apart. Eight rows that a quarter of a load_matrices() reads
// then begin in eight different groups of four banks, since kSize is a multiple of 32 and the
// difference is 4 banks; so do sums that a warp stores as pairs.
#pragma once

#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

template <int kSize>
inline constexpr uint32_t kTileStride = kSize + 8;

/// Two numbers as a word, the first one in the lower half.
template <class Bits>
RONDO_DEVICE uint32_t pack_pair(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  if constexpr (std::is_same_v<Bits, Float16Bits>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return narrow<Bits>(first).bits | uint32_t{narrow<Bits>(second).bits} << 16;
#endif
}

/// 2^x; on a GPU to about 2 units in the last place, and 0 where that is denormal.
RONDO_DEVICE inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return std::exp2(x);
#endif
}

/// 16 x 16 numbers as an operand.
using Fragment = uint32_t[4];
/// Sums of a product, 16 x 8.
using Sums = float[4];

/// As the left operand: the 16 x 16 of a tile that begin at `corner`.
template <uint32_t kStride, class Block, class Bits>
RONDO_DEVICE void load_left(Block& block, const Bits* corner, Fragment& a) {
  const uint32_t lane = block.thread() % kWarp;
  block.load_matrices(a, corner + lane % 16 * kStride + lane / 16 * 8);
}

/// As the right operand.
template <uint32_t kStride, class Block, class Bits>
RONDO_DEVICE void load_right(Block& block, const Bits* corner, Fragment& b) {
  const uint32_t lane = block.thread() % kWarp;
  block.load_matrices_transposed(b, corner + lane % 16 * kStride + lane / 16 * 8);
}

/// As the right operand, transposed: rows of the tile are columns of the operand.
template <uint32_t kStride, class Block, class Bits>
RONDO_DEVICE void load_right_of_rows(Block& block, const Bits* corner, Fragment& b) {
  const uint32_t lane = block.thread() % kWarp;
  block.load_matrices(b, corner + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8);
}

/// A product's 16 x 16 sums, rounded, as the left operand of another one.
template <class Bits>
RONDO_DEVICE void round_to_left(const Sums& first_columns, const Sums& next_columns, Fragment& a) {
  a[0] = pack_pair<Bits>(first_columns[0], first_columns[1]);
  a[1] = pack_pair<Bits>(first_columns[2], first_columns[3]);
  a[2] = pack_pair<Bits>(next_columns[0], next_columns[1]);
  a[3] = pack_pair<Bits>(next_columns[2], next_columns[3]);
}

/// The first 8 and the next 8 columns of sums += a b.
template <class Bits, class Block>
RONDO_DEVICE void multiply_fragments(Block& block, const Fragment& a, const Fragment& b,
                                     Sums& first_columns, Sums& next_columns) {
  block.template mma<Bits>(first_columns, a, b[0], b[1]);
  block.template mma<Bits>(next_columns, a, b[2], b[3]);
}

}  // namespace rondo::trainer::cuda
