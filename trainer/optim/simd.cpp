// See simd.hpp. Compiled once per instruction set: includes as little as it can. Whole vectors
// first, then the rest one by one through the same code with vectors of one lane. Needs
// -ffp-contract=off, as all of rondo does.
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

// What the dispatch table can hold: functions that are no templates.
void sgd_float(const SgdFactors<float>& f, size_t n, float* g, float* v, float* p) {
  sgd(f, n, g, v, p);
}
void sgd_double(const SgdFactors<double>& f, size_t n, double* g, double* v, double* p) {
  sgd(f, n, g, v, p);
}
void adamw_float(const AdamWFactors<float>& f, size_t n, float* g, float* m, float* s, float* p) {
  adamw(f, n, g, m, s, p);
}
void adamw_double(const AdamWFactors<double>& f, size_t n, double* g, double* m, double* s,
                  double* p) {
  adamw(f, n, g, m, s, p);
}
double squares_float(const float* x, size_t n) { return squares(x, n); }
double squares_double(const double* x, size_t n) { return squares(x, n); }
void scaled_float(float* x, size_t n, float factor) { scaled(x, n, factor); }
void scaled_double(double* x, size_t n, double factor) { scaled(x, n, factor); }
bool finite_float(const float* x, size_t n) { return finite(x, n); }
bool finite_double(const double* x, size_t n) { return finite(x, n); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::trainer::simd {

HWY_EXPORT(sgd_float);
HWY_EXPORT(sgd_double);
HWY_EXPORT(adamw_float);
HWY_EXPORT(adamw_double);
HWY_EXPORT(squares_float);
HWY_EXPORT(squares_double);
HWY_EXPORT(scaled_float);
HWY_EXPORT(scaled_double);
HWY_EXPORT(finite_float);
HWY_EXPORT(finite_double);

void sgd_update(const SgdFactors<float>& f, size_t n, float* g, float* v, float* p) {
  HWY_DYNAMIC_DISPATCH(sgd_float)(f, n, g, v, p);
}
void sgd_update(const SgdFactors<double>& f, size_t n, double* g, double* v, double* p) {
  HWY_DYNAMIC_DISPATCH(sgd_double)(f, n, g, v, p);
}
void adamw_update(const AdamWFactors<float>& f, size_t n, float* g, float* m, float* s, float* p) {
  HWY_DYNAMIC_DISPATCH(adamw_float)(f, n, g, m, s, p);
}
void adamw_update(const AdamWFactors<double>& f, size_t n, double* g, double* m, double* s,
                  double* p) {
  HWY_DYNAMIC_DISPATCH(adamw_double)(f, n, g, m, s, p);
}
double sum_of_squares(const float* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(squares_float)(x, n);
}
double sum_of_squares(const double* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(squares_double)(x, n);
}
void multiply(float* x, size_t n, float factor) {
  HWY_DYNAMIC_DISPATCH(scaled_float)(x, n, factor);
}
void multiply(double* x, size_t n, double factor) {
  HWY_DYNAMIC_DISPATCH(scaled_double)(x, n, factor);
}
bool all_finite(const float* x, size_t n) { return HWY_DYNAMIC_DISPATCH(finite_float)(x, n); }
bool all_finite(const double* x, size_t n) { return HWY_DYNAMIC_DISPATCH(finite_double)(x, n); }

}  // namespace rondo::trainer::simd
#endif
