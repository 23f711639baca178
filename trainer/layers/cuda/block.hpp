// All that a kernel of the trainer knows of the machine that runs it. A kernel is a struct of its
// arguments with
//
//     static constexpr uint32_t kThreads;              // of a block, a multiple of kWarp
//     Grid grid() const;                               // blocks; none where there is nothing to do
//     size_t shared_bytes() const;                     // that a block's threads share
//     template <class Block>
//     RONDO_DEVICE void run(Block& block) const;       // what every thread does
//
// and a Block is a thread's view of its block:
//
//     uint32_t thread() const;                         // in [0, kThreads)
//     Grid index() const;                              // of the block in the grid
//     void sync();                                     // all threads of the block meet
//     T shuffle_xor(T value, uint32_t mask);           // the value of thread() ^ mask of this warp
//     T* shared<T>();                                  // the block's memory, aligned to 16 bytes
//
// Copies to shared memory that nobody waits for until wait_copies() returns: the thread's own, so
// that others see them after a sync(). Both pointers are aligned to 16 bytes:
//
//     void copy_async(void* to, const void* from, bool inside);  // 16 bytes; zeros if not inside
//     void wait_copies();
//
// And what all threads of a warp do together, on tensor cores (compute capability 8.0 and later):
//
//     void mma<Bits>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
//     void load_matrices(uint32_t (&to)[4], const Bits* row);
//     void load_matrices_transposed(uint32_t (&to)[4], const Bits* row);
//
// mma: d[16 x 8] += a[16 x 16] b[16 x 8], of Bits (BFloat16Bits or Float16Bits) with sums in float. Of thread 4 g + t of the
// warp, with the lower column (of b: row) in a word's lower half:
//
//     a[0]: row g, columns 2t, 2t + 1       b0: rows 2t, 2t + 1, column g
//     a[1]: row g + 8, the same columns     b1: rows 2t + 8, 2t + 9, column g
//     a[2]: row g, columns 2t + 8, 2t + 9   d[0], d[1]: row g, columns 2t, 2t + 1
//     a[3]: row g + 8, columns as a[2]      d[2], d[3]: row g + 8, the same columns
//
// load_matrices: to[i] is row g, columns 2t and 2t + 1, of the i-th of four 8 x 8 matrices in
// shared memory, whose row j thread 8 i + j points to (8 numbers, aligned to 16 bytes);
// transposed: rows 2t and 2t + 1, column g. (PTX ISA, "mma.m16n8k16" and "ldmatrix".)
//
// nvcc compiles run() for a grid (launch.cuh); tests walk it on the host, thread by thread
// (tests/trainer/cuda/walk.hpp). Results depend on the arguments only: no atomics, and every sum
// has one order.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/device_code.hpp"
#include "kernels/half.hpp"
#include "rondo/types.hpp"

namespace rondo::trainer::cuda {

inline constexpr uint32_t kWarp = 32;

struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

/// A bfloat16 as it is stored. Arithmetic is in float.
struct BFloat16Bits {
  uint16_t bits;
};

/// Likewise an IEEE half.
struct Float16Bits {
  uint16_t bits;
};

/// Of a type's elements in messages.
template <class T>
inline constexpr DataType kTypeOf = std::is_same_v<T, BFloat16Bits>  ? DataType::kBFloat16
                                    : std::is_same_v<T, Float16Bits> ? DataType::kFloat16
                                                                     : DataType::kFloat32;

/// What T is computed in: float for float and two bytes, double for double.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

RONDO_DEVICE inline float widen(float value) { return value; }
RONDO_DEVICE inline double widen(double value) { return value; }
RONDO_DEVICE inline float widen(BFloat16Bits value) {
  return kernels::float_from_bfloat16(value.bits);
}

RONDO_DEVICE inline float widen(Float16Bits value) {
#if defined(__CUDA_ARCH__)
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
#else
  return kernels::float_from_half(value.bits);
#endif
}

/// Rounds to nearest even.
template <class T>
RONDO_DEVICE T narrow(Wide<T> value) {
  if constexpr (std::is_same_v<T, BFloat16Bits>) {
#if defined(__CUDA_ARCH__)
    BFloat16Bits stored;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(stored.bits) : "f"(value));
    return stored;
#else
    return {kernels::bfloat16_from_float(value)};
#endif
  } else if constexpr (std::is_same_v<T, Float16Bits>) {
#if defined(__CUDA_ARCH__)
    Float16Bits stored;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(stored.bits) : "f"(value));
    return stored;
#else
    return {kernels::half_from_float(value)};
#endif
  } else {
    return value;
  }
}

/// a b + c; on a GPU with one rounding.
template <class W>
RONDO_DEVICE W multiply_add(W a, W b, W c) {
#if defined(__CUDA_ARCH__)
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// exp(x) in fewer instructions than exp() on a GPU; far below 0 less exact: relative |x| 2^-23 in
/// float.
template <class W>
RONDO_DEVICE W exponential(W x) {
  using std::exp2;
  return exp2(x * W(1.4426950408889634));
}

/// 1 / x, for x that are neither very large nor very small: on a GPU float's to within a unit.
template <class W>
RONDO_DEVICE W reciprocal(W x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<W, float>) {
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
  }
#endif
  return 1 / x;
}

/// N neighbouring elements, read and written by one access of at most 16 bytes, to which they are
/// aligned.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T at[N];
};

/// The most elements of a pack.
template <class T>
inline constexpr int kPack = static_cast<int>(16 / sizeof(T));

template <int N, class T>
RONDO_DEVICE Pack<T, N> load(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <int N, class T>
RONDO_DEVICE void store(const Pack<T, N>& pack, T* to) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// Likewise to a GPU's memory, not a block's. nvcc at times splits store() into accesses of 4 bytes.
template <int N, class T>
RONDO_DEVICE void store_global(const Pack<T, N>& pack, T* to) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(pack) == 16) {
    uint32_t words[4];
    memcpy(words, &pack, sizeof(words));
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
    return;
  }
#endif
  store(pack, to);
}

/// store() of elements that need several accesses, to each of which `to` is aligned.
template <int N, class T>
RONDO_DEVICE void store_packs(const Pack<T, N>& pack, T* to) {
  constexpr int kEach = N < kPack<T> ? N : kPack<T>;
  for (int i = 0; i < N; i += kEach) {
    Pack<T, kEach> part;
    for (int j = 0; j < kEach; ++j) part.at[j] = pack.at[i + j];
    store(part, to + i);
  }
}

constexpr size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

/// Calls f(0), f(1), ... f(N - 1): a loop that is unrolled, so that arrays that f indexes can stay in
/// registers. nvcc leaves a long loop as it is, and has no #pragma for it that other compilers know.
template <uint32_t N, class F>
RONDO_DEVICE void unrolled(const F& f) {
  [&]<uint32_t... kI>(std::integer_sequence<uint32_t, kI...>) { (f(kI), ...); }
  (std::make_integer_sequence<uint32_t, N>());
}

/// Between reads and what uses them: nvcc otherwise moves reads into the branches that use them, where
/// the thread waits for one after the other.
RONDO_DEVICE inline void after_reads() {
#if defined(__CUDA_ARCH__)
  asm volatile("" ::: "memory");
#endif
}

/// from[index], or 0 where `inside` is false, and then nothing is read. Written as one predicated
/// instruction, because nvcc makes a branch of it. Volatile, so that it stays before what follows it.
template <class T>
RONDO_DEVICE T read_inside(const T* from, uint32_t index, bool inside) {
#if defined(__CUDA_ARCH__)
  const auto address = __cvta_generic_to_global(from + index);
  if constexpr (sizeof(T) == 2) {
    uint32_t bits;  // a register of 16 bits is more work to clear
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.u16 %0, [%1]; }"
        : "=r"(bits)
        : "l"(address), "r"(uint32_t{inside}));
    return {static_cast<uint16_t>(bits)};
  } else if constexpr (std::is_same_v<T, float>) {
    float value;
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
        : "=f"(value)
        : "l"(address), "r"(uint32_t{inside}));
    return value;
  } else {
    return inside ? from[index] : T{};
  }
#else
  return inside ? from[index] : T{};
#endif
}

/// The fold of all threads' values of a warp; every thread gets it.
template <class Block, class W, class Fold>
RONDO_DEVICE W warp_fold(Block& block, W value, const Fold& fold) {
  for (uint32_t mask = kWarp / 2; mask > 0; mask /= 2) {
    value = fold(value, block.shuffle_xor(value, mask));
  }
  return value;
}

template <class Block, class W>
RONDO_DEVICE W warp_sum(Block& block, W value) {
  return warp_fold(block, value, [](W a, W b) { return a + b; });
}

/// Likewise of a block of `threads`. `scratch`: an element for each warp, shared; free again when
/// it returns.
template <class Block, class W, class Fold>
RONDO_DEVICE W block_fold(Block& block, uint32_t threads, W value, const Fold& fold, W* scratch) {
  value = warp_fold(block, value, fold);
  if (block.thread() % kWarp == 0) scratch[block.thread() / kWarp] = value;
  block.sync();
  value = scratch[0];
  for (uint32_t warp = 1; warp < threads / kWarp; ++warp) value = fold(value, scratch[warp]);
  block.sync();
  return value;
}

}  // namespace rondo::trainer::cuda
