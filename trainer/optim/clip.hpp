// The norm of all gradients together, and what is done with it: clipping, and finding what is no
// number. The norm is a sum over blocks counted from each parameter's first element, added in
// the parameters' order, so that its bits depend neither on buckets nor on who computed which
// block. Talks to no other rank.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// Elements of a block; a parameter's last may be shorter.
inline constexpr size_t kNormBlock = 4096;

/// The sum of squares of one block, in double and in a fixed order (simd.hpp). n <= kNormBlock.
template <class T>
double block_sum(const T* values, size_t n);

/// What gradients of this norm are multiplied by, as torch.nn.utils.clip_grad_norm_: max_norm /
/// (norm + 1e-6), at most 1. NaN for a norm that is NaN.
double clip_coefficient(double norm, double max_norm);

template <class T>
void scale(T* values, size_t count, T factor);

/// Whether none is infinite or NaN.
template <class T>
bool all_finite(const T* values, size_t count);

}  // namespace rondo::trainer
