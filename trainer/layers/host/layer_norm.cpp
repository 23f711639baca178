// See layer_norm.hpp.
#include "trainer/layers/host/layer_norm.hpp"

#include <cmath>

#define HWY_TARGET_INCLUDE "trainer/layers/host/layer_norm.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"
#include "trainer/base/kernels_for.hpp"
#include "trainer/layers/host/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::trainer {
namespace HWY_NAMESPACE {
namespace {

/// The sum of a row to which delta and bias, where there are any, were added.
template <class D, class T>
HWY_INLINE T add_and_sum(D d, size_t width, const T* delta, const T* bias, T* x) {
  if (delta == nullptr) {
    return sum_of(d, width, [&](size_t i, auto part) HWY_ATTR { return load(d, x + i, part); });
  }
  return sum_of(d, width, [&](size_t i, auto part) HWY_ATTR {
    auto v = hn::Add(load(d, x + i, part), load(d, delta + i, part));
    if (bias != nullptr) v = hn::Add(v, load(d, bias + i, part));
    store(d, v, x + i, part);
    return v;
  });
}

template <class T>
void forward(const LayerNormForward<T>& pass) {
  const hn::ScalableTag<T> d;
  constexpr double kEpsilon = 1e-5;
  const size_t width = pass.width;
  const T count = static_cast<T>(width);
  for (size_t r = 0; r < pass.rows; ++r) {
    T* x = pass.x + r * width;
    const T* delta = pass.delta == nullptr ? nullptr : pass.delta + r * width;
    const T mean = add_and_sum(d, width, delta, pass.bias, x) / count;
    const auto means = hn::Set(d, mean);
    // Over the row again rather than from the sum of squares, which would cancel.
    const T variance = sum_of(d, width,
                              [&](size_t i, auto part) HWY_ATTR {
                                const auto centred = hn::Sub(load(d, x + i, part), means);
                                return hn::Mul(centred, centred);
                              }) /
                       count;
    const T reciprocal = static_cast<T>(1 / std::sqrt(static_cast<double>(variance) + kEpsilon));
    const auto reciprocals = hn::Set(d, reciprocal);
    T* normal = pass.normal + r * width;
    T* y = pass.y + r * width;
    for_vectors(d, width, [&](size_t i, auto part) HWY_ATTR {
      const auto value = hn::Mul(hn::Sub(load(d, x + i, part), means), reciprocals);
      store(d, value, normal + i, part);
      store(d, hn::MulAdd(value, load(d, pass.gamma + i, part), load(d, pass.beta + i, part)),
            y + i, part);
    });
    pass.reciprocal[r] = reciprocal;
  }
}

/// With g = gamma dy: dx = (g - mean(g) - normal mean(g normal)) / sqrt(variance + epsilon).
template <class T>
void backward(const LayerNormBackward<T>& pass) {
  const hn::ScalableTag<T> d;
  const size_t width = pass.width;
  const T count = static_cast<T>(width);
  for (size_t r = 0; r < pass.rows; ++r) {
    const T* dy = pass.dy + r * width;
    const T* normal = pass.normal + r * width;
    T* dx = pass.dx + r * width;
    const T mean = sum_of(d, width,
                          [&](size_t i, auto part) HWY_ATTR {
                            return hn::Mul(load(d, dy + i, part), load(d, pass.gamma + i, part));
                          }) /
                   count;
    const T slope = sum_of(d, width,
                           [&](size_t i, auto part) HWY_ATTR {
                             const auto dy_normal =
                                 hn::Mul(load(d, dy + i, part), load(d, normal + i, part));
                             store(d, hn::Add(load(d, pass.dgamma + i, part), dy_normal),
                                   pass.dgamma + i, part);
                             return hn::Mul(dy_normal, load(d, pass.gamma + i, part));
                           }) /
                    count;
    const auto means = hn::Set(d, mean), slopes = hn::Set(d, slope);
    const auto reciprocals = hn::Set(d, pass.reciprocal[r]);
    for_vectors(d, width, [&](size_t i, auto part) HWY_ATTR {
      const auto in = load(d, dy + i, part);
      store(d, hn::Add(load(d, pass.dbeta + i, part), in), pass.dbeta + i, part);
      const auto centred = hn::Sub(hn::Mul(in, load(d, pass.gamma + i, part)), means);
      const auto gradient = hn::NegMulAdd(load(d, normal + i, part), slopes, centred);
      store(d, hn::MulAdd(gradient, reciprocals, load(d, dx + i, part)), dx + i, part);
    });
  }
}

template <class T>
LayerNorm<T> layer_norm_of() {
  return {.forward = forward<T>, .backward = backward<T>};
}
LayerNorm<float> float_layer_norm() { return layer_norm_of<float>(); }
LayerNorm<double> double_layer_norm() { return layer_norm_of<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::trainer {

HWY_EXPORT(float_layer_norm);
HWY_EXPORT(double_layer_norm);

template <class T>
const LayerNorm<T>& layer_norm_kernels() {
  return kernels_for<T>(HWY_DYNAMIC_DISPATCH(float_layer_norm),
                        HWY_DYNAMIC_DISPATCH(double_layer_norm));
}

template const LayerNorm<float>& layer_norm_kernels();
template const LayerNorm<double>& layer_norm_kernels();

}  // namespace rondo::trainer
#endif
