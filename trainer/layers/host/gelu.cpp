// See gelu.hpp.
#include "trainer/layers/host/gelu.hpp"

#define HWY_TARGET_INCLUDE "trainer/layers/host/gelu.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"
#include "trainer/base/kernels_for.hpp"
#include "trainer/layers/host/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::trainer {
namespace HWY_NAMESPACE {
namespace {

/// (1 + tanh u) / 2 is the logistic function of v = 2u = x (a + b x^2), with
/// a = 2 sqrt(2/pi) and b = 0.044715 a. With e = exp(-|v|) neither end of it cancels.
template <class T>
void forward(size_t rows, size_t width, const T* bias, T* x, T* y) {
  const hn::ScalableTag<T> d;
  constexpr double kA = 1.5957691216057307, kB = 0.044715 * kA;
  const auto a = hn::Set(d, static_cast<T>(kA)), b = hn::Set(d, static_cast<T>(kB));
  const auto three_b = hn::Set(d, static_cast<T>(3 * kB)), one = hn::Set(d, T{1});
  for (size_t r = 0; r < rows; ++r) {
    T* x_row = x + r * width;
    T* y_row = y + r * width;
    for_vectors(d, width, [&](size_t i, auto part) HWY_ATTR {
      const auto at = hn::Add(load(d, x_row + i, part), load(d, bias + i, part));
      const auto square = hn::Mul(at, at);
      const auto v = hn::Mul(at, hn::MulAdd(b, square, a));
      const auto slope = hn::MulAdd(three_b, square, a);  // dv/dx
      const auto e = exp_of_negative(d, hn::Neg(hn::Abs(v)));
      const auto upper = hn::Div(one, hn::Add(one, e));  // the logistic function of |v|
      const auto lower = hn::Mul(e, upper);              // and of -|v|
      const auto logistic = hn::IfThenElse(hn::Lt(v, hn::Zero(d)), lower, upper);
      store(d, hn::Mul(at, logistic), y_row + i, part);
      store(d, hn::MulAdd(hn::Mul(at, hn::Mul(upper, lower)), slope, logistic), x_row + i, part);
    });
  }
}

template <class T>
void backward(size_t rows, size_t width, const T* derivative, T* dy, T* dbias) {
  const hn::ScalableTag<T> d;
  for (size_t r = 0; r < rows; ++r) {
    const T* derivative_row = derivative + r * width;
    T* row = dy + r * width;
    for_vectors(d, width, [&](size_t i, auto part) HWY_ATTR {
      const auto dx = hn::Mul(load(d, row + i, part), load(d, derivative_row + i, part));
      store(d, dx, row + i, part);
      store(d, hn::Add(load(d, dbias + i, part), dx), dbias + i, part);
    });
  }
}

Gelu<float> float_gelu() { return {.forward = forward<float>, .backward = backward<float>}; }
Gelu<double> double_gelu() { return {.forward = forward<double>, .backward = backward<double>}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::trainer {

HWY_EXPORT(float_gelu);
HWY_EXPORT(double_gelu);

template <class T>
const Gelu<T>& gelu_kernels() {
  return kernels_for<T>(HWY_DYNAMIC_DISPATCH(float_gelu), HWY_DYNAMIC_DISPATCH(double_gelu));
}

template const Gelu<float>& gelu_kernels();
template const Gelu<double>& gelu_kernels();

}  // namespace rondo::trainer
#endif
