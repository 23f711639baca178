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

/// gradient' = gradient + weight_decay * parameter; velocity = momentum * velocity + gradient';
/// parameter -= rate * velocity. Without velocity (null) gradient' takes its place; without
/// weight_decay (0) the parameter has no part in gradient', not even when it is infinite. Gradients
/// are zeros afterwards, here as in adamw_update.
void sgd_update(const SgdFactors<float>& factors, size_t count, float* gradients, float* velocity,
                float* parameters);
void sgd_update(const SgdFactors<double>& factors, size_t count, double* gradients,
                double* velocity, double* parameters);

template <class T>
struct AdamWFactors {
  T keep;                             // 1 - rate * weight_decay, or 1
  T first_weight;                     // 1 - beta1
  T second_keep, second_weight;       // beta2, 1 - beta2
  T second_correction_root, epsilon;  // sqrt(1 - beta2^step)
  T step_size;                        // rate / (1 - beta1^step)
};

/// mean += first_weight * (gradient - mean); square = second_keep * square + second_weight *
/// gradient * gradient; parameter = keep * parameter - step_size * mean / (sqrt(square) /
/// second_correction_root + epsilon).
void adamw_update(const AdamWFactors<float>& factors, size_t count, float* gradients, float* mean,
                  float* square, float* parameters);
void adamw_update(const AdamWFactors<double>& factors, size_t count, double* gradients,
                  double* mean, double* square, double* parameters);

/// The sum of squares, in double: 16 sums, of the elements whose index is 0, 1, ... 15 modulo 16,
/// each from the first element to the last, then added in pairs (0 with 8, ...; 0 with 4, ...).
double sum_of_squares(const float* values, size_t count);
double sum_of_squares(const double* values, size_t count);

void multiply(float* values, size_t count, float factor);
void multiply(double* values, size_t count, double factor);

/// Whether none is infinite or NaN.
bool all_finite(const float* values, size_t count);
bool all_finite(const double* values, size_t count);

}  // namespace rondo::trainer::simd
