// The norm of all gradients together, and what is done with it: clipping. The norm is a sum over
// blocks counted from each parameter's first element, added in the parameters' order, so that its
// bits depend neither on buckets nor on who computed which block. Talks to no other rank.
#pragma once

#include "rondo/status.hpp"
#include "trainer/optim/simd.hpp"

namespace rondo::trainer {

/// Elements of a block; a parameter's last may be shorter.
inline constexpr size_t kNormBlock = 4096;

/// The sum of squares of one block, in double and in a fixed order (simd.hpp). n <= kNormBlock.
template <class T>
double block_sum(const T* values, size_t n) {
  RONDO_CHECK(n <= kNormBlock, "a block of %zu elements", n);
  return simd::flat_kernels<T>().sum_of_squares(values, n);
}

/// What gradients of this norm are multiplied by, as torch.nn.utils.clip_grad_norm_: max_norm /
/// (norm + 1e-6), at most 1. NaN for a norm that is NaN.
inline double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1 ? 1 : coefficient;
}

}  // namespace rondo::trainer
