// The passes over all parameters that are bound by memory, one function each, with the best
// instructions this CPU has. Every element's result is the same few IEEE operations in the same
// order whatever the vector's width and wherever a range is cut: never fused, no approximation.
// Pointers need no alignment. Knows no options: see optimizer.hpp and clip.hpp.
#pragma once

#include <cstddef>

namespace rondo::trainer::simd {

template <class T>
struct SgdFactors {
  T momentum, weight_decay, rate;
};

template <class T>
struct AdamWFactors {
  T keep;                             // 1 - rate * weight_decay, or 1
  T first_weight;                     // 1 - beta1
  T second_keep, second_weight;       // beta2, 1 - beta2
  T second_correction_root, epsilon;  // sqrt(1 - beta2^step)
  T step_size;                        // rate / (1 - beta1^step)
};

/// T is float or double.
template <class T>
struct FlatKernels {
  /// gradient' = gradient + weight_decay * parameter; velocity = momentum * velocity + gradient';
  /// parameter -= rate * velocity. Without velocity (null) gradient' takes its place; without
  /// weight_decay (0) the parameter has no part in gradient', not even when it is infinite.
  /// Gradients are zeros afterwards, here as in adamw().
  void (*sgd)(const SgdFactors<T>& factors, size_t count, T* gradients, T* velocity, T* parameters);
  /// mean += first_weight * (gradient - mean); square = second_keep * square + second_weight *
  /// gradient * gradient; parameter = keep * parameter - step_size * mean / (sqrt(square) /
  /// second_correction_root + epsilon).
  void (*adamw)(const AdamWFactors<T>& factors, size_t count, T* gradients, T* mean, T* square,
                T* parameters);
  /// In double: 16 sums, of the elements whose index is 0, 1, ... 15 modulo 16, each from the first
  /// element to the last, then added in pairs (0 with 8, ...; 0 with 4, ...).
  double (*sum_of_squares)(const T* values, size_t count);
  void (*multiply)(T* values, size_t count, T factor);
  /// Whether none is infinite or NaN.
  bool (*all_finite)(const T* values, size_t count);
};

template <class T>
FlatKernels<T> flat_kernels();

}  // namespace rondo::trainer::simd
