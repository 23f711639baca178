// The passes over all parameters on a GPU. See ../simd.hpp for the formulas. Gradients and
// parameters may be bfloat16; the optimizer's own values are wide.
#pragma once

#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

/// gradient' = scale * gradient + weight_decay * master; velocity = momentum * velocity +
/// gradient'; master -= rate * velocity; the parameter is the rounded master, gradients are zeros
/// afterwards. Without velocity (null) gradient' takes its place.
template <class T>
struct SgdKernel {
  Wide<T> scale, momentum, weight_decay, rate;
  size_t count;
  T* gradients;
  Wide<T>* velocity;
  Wide<T>* masters;
  T* parameters;  // may be the masters themselves where T is wide

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(count, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= count) return;
    Wide<T> step = scale * widen(gradients[i]);
    if (weight_decay != 0) step += weight_decay * masters[i];
    if (velocity != nullptr) step = velocity[i] = momentum * velocity[i] + step;
    masters[i] -= rate * step;
    parameters[i] = narrow<T>(masters[i]);
    gradients[i] = narrow<T>(0);
  }
};

/// With g = scale * gradient: mean += first_weight * (g - mean); square = second_keep * square +
/// second_weight * g * g; master = keep * master - step_size * mean / (sqrt(square) /
/// second_correction_root + epsilon); the parameter is the rounded master, gradients are zeros
/// afterwards.
template <class T>
struct AdamWKernel {
  Wide<T> scale;
  Wide<T> keep, first_weight, second_keep, second_weight, second_correction_root, epsilon,
      step_size;  // as in simd::AdamWFactors
  size_t count;
  T* gradients;
  Wide<T>* mean;
  Wide<T>* square;
  Wide<T>* masters;
  T* parameters;  // may be the masters themselves where T is wide

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(count, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using std::sqrt;
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= count) return;
    const Wide<T> g = scale * widen(gradients[i]);
    const Wide<T> m = mean[i] + first_weight * (g - mean[i]);
    const Wide<T> v = second_keep * square[i] + second_weight * g * g;
    mean[i] = m;
    square[i] = v;
    masters[i] = keep * masters[i] - step_size * m / (sqrt(v) / second_correction_root + epsilon);
    parameters[i] = narrow<T>(masters[i]);
    gradients[i] = narrow<T>(0);
  }
};

/// partial[kBlocks]: sums of squares in double, each block's of every kBlocks-th piece, for
/// AddSumsKernel. Not finite if a value is not.
template <class T>
struct SumOfSquaresKernel {
  static constexpr uint32_t kBlocks = 512;
  size_t count;
  const T* values;
  double* partial;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = kBlocks}; }
  size_t shared_bytes() const { return kThreads / kWarp * sizeof(double); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    double sum = 0;
    for (size_t i = size_t{block.index().x} * kThreads + block.thread(); i < count;
         i += size_t{kBlocks} * kThreads) {
      const auto value = static_cast<double>(widen(values[i]));
      sum = multiply_add(value, value, sum);
    }
    sum = block_fold(
        block, kThreads, sum, [](double a, double b) { return a + b; },
        block.template shared<double>());
    if (block.thread() == 0) partial[block.index().x] = sum;
  }
};

/// *sum = the sum of `count` doubles: those of the blocks of SumOfSquaresKernel, or the losses of
/// rows.
struct AddSumsKernel {
  size_t count;
  const double* values;
  double* sum;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {}; }
  size_t shared_bytes() const { return kThreads / kWarp * sizeof(double); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    double own = 0;
    for (size_t i = block.thread(); i < count; i += kThreads) own += values[i];
    own = block_fold(
        block, kThreads, own, [](double a, double b) { return a + b; },
        block.template shared<double>());
    if (block.thread() == 0) *sum = own;
  }
};

}  // namespace rondo::trainer::cuda
