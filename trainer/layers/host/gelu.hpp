// GELU in GPT-2's form, x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), together with the bias
// before it and that bias's gradient: one pass over memory forward, one backward. The value and the
// derivative share the exponential function, so forward computes both and backward none.
#pragma once

#include <cstddef>

namespace rondo::trainer {

template <class T>
struct Gelu {
  /// y = gelu(x + bias), and x becomes the derivative there. x, y: [rows x width]; bias: [width].
  /// In float within 8 epsilon (1 + |x|) of the exact function.
  void (*forward)(size_t rows, size_t width, const T* bias, T* x, T* y);
  /// In place on the gradient of y: times `derivative`. dbias[width] += the sums of its columns.
  void (*backward)(size_t rows, size_t width, const T* derivative, T* dy, T* dbias);
};

template <class T>
const Gelu<T>& gelu_kernels();

}  // namespace rondo::trainer
