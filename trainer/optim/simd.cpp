// See simd.hpp. Compiled once per instruction set: includes as little as it can. Whole vectors
// first, then the rest one by one through the same code with vectors of one lane. Needs
// -ffp-contract=off, as all of rondo does.
#include <type_traits>

#define HWY_TARGET_INCLUDE "trainer/optim/simd.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"
#include "trainer/optim/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::trainer::simd {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Steps are taken by value, so that the compiler sees that no store changes their factors.
template <class T, class Step>
HWY_INLINE void for_all(size_t count, Step step) {
  const hn::ScalableTag<T> whole;
  const size_t lanes = hn::Lanes(whole);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) step(whole, i);
  const hn::CappedTag<T, 1> one;
  for (; i < count; ++i) step(one, i);
}

template <class T, bool kDecays, bool kHasVelocity>
struct SgdStep {
  SgdFactors<T> factors;
  T* gradients;
  T* velocity;
  T* parameters;

  template <class D>
  HWY_INLINE void operator()(D d, size_t i) const {
    const auto parameter = hn::LoadU(d, parameters + i);
    auto gradient = hn::LoadU(d, gradients + i);
    if constexpr (kDecays) {
      gradient = hn::Add(gradient, hn::Mul(hn::Set(d, factors.weight_decay), parameter));
    }
    if constexpr (kHasVelocity) {
      const auto kept = hn::Mul(hn::Set(d, factors.momentum), hn::LoadU(d, velocity + i));
      gradient = hn::Add(kept, gradient);
      hn::StoreU(gradient, d, velocity + i);
    }
    const auto step = hn::Mul(hn::Set(d, factors.rate), gradient);
    hn::StoreU(hn::Sub(parameter, step), d, parameters + i);
    hn::StoreU(hn::Zero(d), d, gradients + i);
  }
};

template <class T>
void sgd(const SgdFactors<T>& factors, size_t count, T* gradients, T* velocity, T* parameters) {
  const bool decays = factors.weight_decay != 0;
  if (decays && velocity != nullptr) {
    for_all<T>(count, SgdStep<T, true, true>{factors, gradients, velocity, parameters});
  } else if (decays) {
    for_all<T>(count, SgdStep<T, true, false>{factors, gradients, velocity, parameters});
  } else if (velocity != nullptr) {
    for_all<T>(count, SgdStep<T, false, true>{factors, gradients, velocity, parameters});
  } else {
    for_all<T>(count, SgdStep<T, false, false>{factors, gradients, velocity, parameters});
  }
}

template <class T>
struct AdamWStep {
  AdamWFactors<T> factors;
  T* gradients;
  T* means;
  T* squares;
  T* parameters;

  template <class D>
  HWY_INLINE void operator()(D d, size_t i) const {
    const auto gradient = hn::LoadU(d, gradients + i);
    const auto old_mean = hn::LoadU(d, means + i);
    const auto change = hn::Sub(gradient, old_mean);
    const auto mean = hn::Add(old_mean, hn::Mul(hn::Set(d, factors.first_weight), change));
    const auto kept = hn::Mul(hn::Set(d, factors.second_keep), hn::LoadU(d, squares + i));
    const auto weighted = hn::Mul(hn::Set(d, factors.second_weight), gradient);
    const auto square = hn::Add(kept, hn::Mul(weighted, gradient));
    const auto root = hn::Div(hn::Sqrt(square), hn::Set(d, factors.second_correction_root));
    const auto step = hn::Div(hn::Mul(hn::Set(d, factors.step_size), mean),
                              hn::Add(root, hn::Set(d, factors.epsilon)));
    const auto parameter = hn::Mul(hn::LoadU(d, parameters + i), hn::Set(d, factors.keep));
    hn::StoreU(mean, d, means + i);
    hn::StoreU(square, d, squares + i);
    hn::StoreU(hn::Sub(parameter, step), d, parameters + i);
    hn::StoreU(hn::Zero(d), d, gradients + i);
  }
};

template <class T>
void adamw(const AdamWFactors<T>& factors, size_t count, T* gradients, T* mean, T* square,
           T* parameters) {
  for_all<T>(count, AdamWStep<T>{factors, gradients, mean, square, parameters});
}

template <class D>
HWY_INLINE hn::Vec<D> load_double(D d, const double* values) {
  return hn::LoadU(d, values);
}
template <class D>
HWY_INLINE hn::Vec<D> load_double(D d, const float* values) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), values));
}

template <class T>
double squares(const T* values, size_t count) {
  constexpr size_t kSums = 16;
  using D = hn::CappedTag<double, kSums>;
  const D d;
  constexpr size_t kLanes = hn::MaxLanes(D());
  constexpr size_t kVectors = kSums / kLanes;
  hn::Vec<D> partial[kVectors];
  for (auto& vector : partial) vector = hn::Zero(d);
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto x = load_double(d, values + i + v * kLanes);
      partial[v] = hn::Add(partial[v], hn::Mul(x, x));
    }
  }
  double sums[kSums];
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(partial[v], d, sums + v * kLanes);
  for (size_t lane = 0; i < count; ++i, ++lane) {
    const double x = static_cast<double>(values[i]);
    sums[lane] += x * x;
  }
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

template <class T>
struct Multiply {
  T* values;
  T factor;

  template <class D>
  HWY_INLINE void operator()(D d, size_t i) const {
    hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, factor)), d, values + i);
  }
};

template <class T>
void scaled(T* values, size_t count, T factor) {
  for_all<T>(count, Multiply<T>{values, factor});
}

/// x - x is 0 for every number and NaN for what is none; a NaN stays in a sum.
template <class T>
bool finite(const T* values, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto zeros = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::LoadU(d, values + i);
    zeros = hn::Add(zeros, hn::Sub(x, x));
  }
  T rest = 0;
  for (; i < count; ++i) rest += values[i] - values[i];
  return rest == 0 && hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)));
}

template <class T>
FlatKernels<T> flat_of() {
  return {.sgd = sgd<T>,
          .adamw = adamw<T>,
          .sum_of_squares = squares<T>,
          .multiply = scaled<T>,
          .all_finite = finite<T>};
}
FlatKernels<float> float_flat() { return flat_of<float>(); }
FlatKernels<double> double_flat() { return flat_of<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::trainer::simd {

HWY_EXPORT(float_flat);
HWY_EXPORT(double_flat);

template <class T>
FlatKernels<T> flat_kernels() {
  if constexpr (std::is_same_v<T, float>) {
    return HWY_DYNAMIC_DISPATCH(float_flat)();
  } else {
    return HWY_DYNAMIC_DISPATCH(double_flat)();
  }
}

template FlatKernels<float> flat_kernels();
template FlatKernels<double> flat_kernels();

}  // namespace rondo::trainer::simd
#endif
