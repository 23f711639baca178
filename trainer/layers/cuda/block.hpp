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

namespace rondo::trainer::cuda {

inline constexpr uint32_t kWarp = 32;

struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

/// A bfloat16 as it is stored. Arithmetic is in float.
struct BFloat16Bits {
  uint16_t bits;
};

/// What T is computed in: float for float and BFloat16Bits, double for double.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

RONDO_DEVICE inline float widen(float value) { return value; }
RONDO_DEVICE inline double widen(double value) { return value; }
RONDO_DEVICE inline float widen(BFloat16Bits value) {
  return kernels::float_from_bfloat16(value.bits);
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

constexpr size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

/// Calls f(0), f(1), ... f(N - 1): a loop that is unrolled, so that arrays that f indexes can stay in
/// registers. nvcc leaves a long loop as it is, and has no #pragma for it that other compilers know.
template <uint32_t N, class F>
RONDO_DEVICE void unrolled(const F& f) {
  [&]<uint32_t... kI>(std::integer_sequence<uint32_t, kI...>) { (f(kI), ...); }
  (std::make_integer_sequence<uint32_t, N>());
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
