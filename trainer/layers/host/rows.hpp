// What layers do to numbers one by one, or to whole rows of them, besides matrix products. Memory
// is passed once and in vectors, of the best instruction set that the machine has.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// Plain functions behind one look-up of the machine's instruction set. T is float or double.
template <class T>
struct RowKernels {
  /// y[rows x width] += bias[width] in every row, and then max(0, y) when `relu`; NaN stays one.
  void (*add_bias)(size_t rows, size_t width, const T* bias, bool relu, T* y);
  /// sums[width] += the sums of the columns of x[rows x width].
  void (*add_columns)(size_t rows, size_t width, const T* x, T* sums);
  void (*add)(size_t count, const T* from, T* to);
  void (*scale)(size_t count, T factor, T* values);
  /// In place on the gradient of a ReLU's output y: zero wherever y is not positive.
  void (*relu_backward)(size_t count, const T* y, T* dy);
};

template <class T>
const RowKernels<T>& rows_kernels();

}  // namespace rondo::trainer
