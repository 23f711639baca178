// The passes over all parameters on a GPU. See ../simd.hpp for the formulas. Gradients and
// parameters may have two bytes; the optimizer's own values are wide.
#pragma once

#include "trainer/layers/cuda/rows.hpp"
#include "trainer/optim/cuda/step_state.hpp"

namespace rondo::trainer::cuda {

/// The elements of one thread: neighbouring threads have neighbouring ones, each kThreads after the
/// one before. A pass reads all of them before it writes, and without branches, so that the memory
/// has several reads of each thread to answer at a time.
struct FlatPart {
  static constexpr uint32_t kThreads = 256, kEach = 4;
  static Grid grid(size_t count) {
    return {.x = static_cast<uint32_t>(ceil_div(count, kThreads * kEach))};
  }
  size_t count, first;

  template <class Block>
  RONDO_DEVICE FlatPart(Block& block, size_t elements)
      : count(elements), first(size_t{block.index().x} * kThreads * kEach + block.thread()) {}
  /// f(j, i): number j of the thread's elements is element i of all; past the end the last one.
  template <class F>
  RONDO_DEVICE void read(const F& f) const {
    unrolled<kEach>([&](uint32_t j) {
      const size_t i = first + j * kThreads;
      f(j, i < count ? i : count - 1);
    });
  }
  /// f(j, i) for those that are not past the end.
  template <class F>
  RONDO_DEVICE void write(const F& f) const {
    after_reads();
    unrolled<kEach>([&](uint32_t j) {
      if (const size_t i = first + j * kThreads; i < count) f(j, i);
    });
  }
};

/// Which parameters decay: whether those of each kUnit do, counted from the first of all. A pass begins
/// at number `first`.
struct DecayMap {
  // No two tensors share one: they begin at multiples of 64 bytes.
  static constexpr size_t kUnit = 16;
  const uint8_t* units;
  size_t first = 0;

  RONDO_DEVICE bool decays(size_t i) const { return units[(first + i) / kUnit] != 0; }
};

/// gradient' = coefficient * gradient + weight_decay * master, the latter of parameters that decay;
/// velocity = momentum * velocity + gradient'; master -= rate * velocity; the parameter is the rounded
/// master, gradients are zeros afterwards. Without velocity (null) gradient' takes its place.
template <class T>
struct SgdKernel {
  const UpdateFactors<Wide<T>>* factors;
  DecayMap decay;
  Wide<T> momentum, weight_decay;
  size_t count;
  T* gradients;
  Wide<T>* velocity;
  Wide<T>* masters;
  T* parameters;  // may be the masters themselves where T is wide

  static constexpr uint32_t kThreads = FlatPart::kThreads;
  Grid grid() const { return FlatPart::grid(count); }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const FlatPart part(block, count);
    T gradient[FlatPart::kEach] = {};
    Wide<T> moved[FlatPart::kEach] = {}, master[FlatPart::kEach] = {};
    bool decays[FlatPart::kEach] = {};
    part.read([&](uint32_t j, size_t i) {
      decays[j] = decay.decays(i);
      gradient[j] = gradients[i];
      if (velocity != nullptr) moved[j] = velocity[i];
      master[j] = masters[i];
    });
    const UpdateFactors<Wide<T>> f = *factors;
    part.write([&](uint32_t j, size_t i) {
      gradients[i] = narrow<T>(0);
      if (f.skips) return;
      Wide<T> step = f.coefficient * widen(gradient[j]);
      if (decays[j] && weight_decay != 0) step += weight_decay * master[j];
      if (velocity != nullptr) step = velocity[i] = momentum * moved[j] + step;
      masters[i] = master[j] -= f.rate * step;
      parameters[i] = narrow<T>(master[j]);
    });
  }
};

/// With g = coefficient * gradient: mean += first_weight * (g - mean); square = second_keep * square +
/// second_weight * g * g; master = keep * master - step_size * mean / (sqrt(square) /
/// second_correction_root + epsilon), where keep is 1 if the parameter does not decay; the parameter is
/// the rounded master, gradients are zeros afterwards.
template <class T>
struct AdamWKernel {
  const UpdateFactors<Wide<T>>* factors;
  DecayMap decay;
  Wide<T> first_weight, second_keep, second_weight, epsilon;  // as in simd::AdamWFactors
  size_t count;
  T* gradients;
  Wide<T>* mean;
  Wide<T>* square;
  Wide<T>* masters;
  T* parameters;  // may be the masters themselves where T is wide

  static constexpr uint32_t kThreads = FlatPart::kThreads;
  Grid grid() const { return FlatPart::grid(count); }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using std::sqrt;
    const FlatPart part(block, count);
    T gradient[FlatPart::kEach] = {};
    Wide<T> m[FlatPart::kEach] = {}, v[FlatPart::kEach] = {}, master[FlatPart::kEach] = {};
    bool decays[FlatPart::kEach] = {};
    part.read([&](uint32_t j, size_t i) {
      decays[j] = decay.decays(i);
      gradient[j] = gradients[i];
      m[j] = mean[i];
      v[j] = square[i];
      master[j] = masters[i];
    });
    const UpdateFactors<Wide<T>> f = *factors;
    part.write([&](uint32_t j, size_t i) {
      gradients[i] = narrow<T>(0);
      if (f.skips) return;
      const Wide<T> g = f.coefficient * widen(gradient[j]);
      m[j] += first_weight * (g - m[j]);
      v[j] = second_keep * v[j] + second_weight * g * g;
      mean[i] = m[j];
      square[i] = v[j];
      master[j] = (decays[j] ? f.keep : 1) * master[j] -
                  f.step_size * m[j] / (sqrt(v[j]) / f.second_correction_root + epsilon);
      masters[i] = master[j];
      parameters[i] = narrow<T>(master[j]);
    });
  }
};

/// partial[kBlocks]: sums of squares in double, of every so many packs, for AddRowsKernel. Not finite
/// if a value is not. The values may begin anywhere.
template <class T>
struct SumOfSquaresKernel {
  static constexpr uint32_t kBlocks = 512;
  size_t count;
  const T* values;
  double* partial;

  static constexpr uint32_t kThreads = 512;
  static constexpr size_t kN = kPack<T>;
  constexpr uint32_t blocks() const {
    const size_t useful = ceil_div(count, kThreads * kN);
    return useful == 0 ? 1 : useful < kBlocks ? static_cast<uint32_t>(useful) : kBlocks;
  }
  Grid grid() const { return {.x = blocks()}; }
  size_t shared_bytes() const { return kThreads / kWarp * sizeof(double); }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const uint32_t own = block.index().x, all = blocks();
    const size_t thread = size_t{own} * kThreads + block.thread();
    // Whole packs, and a few values before and after them.
    const size_t begins = reinterpret_cast<uintptr_t>(values) / sizeof(T) % kN;
    const size_t before = begins == 0 ? 0 : kN - begins < count ? kN - begins : count;
    const size_t packs = (count - before) / kN, after = before + packs * kN;
    double sum = 0;
    const auto add = [&](T one) {
      const auto value = static_cast<double>(widen(one));
      sum = multiply_add(value, value, sum);
    };
    for (size_t p = thread; p < packs; p += size_t{all} * kThreads) {
      const Pack<T, kN> pack = load<kN>(values + before + p * kN);
      for (const T& one : pack.at) add(one);
    }
    if (thread < before) add(values[thread]);
    if (thread < count - after) add(values[after + thread]);
    sum = block_fold(
        block, kThreads, sum, [](double a, double b) { return a + b; },
        block.template shared<double>());
    if (block.thread() != 0) return;
    partial[own] = sum;
    for (uint32_t b = own + all; b < kBlocks; b += all) partial[b] = 0;  // which has no values
  }
};

}  // namespace rondo::trainer::cuda
