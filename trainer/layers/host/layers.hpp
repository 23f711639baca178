// The layers as plain functions: forward and, by hand, backward. They own nothing, allocate
// nothing, know no ranks, and accept zero rows. Row-major; shapes stand beside each function.
// Gradients are written, or added when `accumulate`. T is float or double.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "trainer/layers/host/matmul.hpp"
#include "trainer/layers/host/rows.hpp"
#include "trainer/layers/operands.hpp"

namespace rondo::trainer {

/// y[rows x out] = x[rows x in] w[out x in]^T + bias[out], and then max(0, y) when `relu`.
template <class T>
void linear_forward(const LinearShape& shape, const T* x, const T* w, const T* bias, bool relu,
                    T* y) {
  multiply_forward(shape, x, w, y);
  const RowKernels<T>& kernels = rows_kernels<T>();
  const size_t stride = shape.y_stride();
  if (stride == shape.out) return kernels.add_bias(shape.rows, shape.out, bias, relu, y);
  for (size_t r = 0; r < shape.rows; ++r) {
    kernels.add_bias(1, shape.out, bias, relu, y + r * stride);
  }
}

/// dbias[out] = the column sums of dy[rows x out].
template <class T>
void linear_backward_bias(const LinearShape& shape, const T* dy, bool accumulate, T* dbias) {
  if (!accumulate) std::fill_n(dbias, shape.out, T{0});
  const RowKernels<T>& kernels = rows_kernels<T>();
  const size_t stride = shape.y_stride();
  if (stride == shape.out) return kernels.add_columns(shape.rows, shape.out, dy, dbias);
  for (size_t r = 0; r < shape.rows; ++r) kernels.add(shape.out, dy + r * stride, dbias);
}

/// The same, and dw[out x in] = dy^T x.
template <class T>
void linear_backward_parameters(const LinearShape& shape, const T* dy, const T* x, bool accumulate,
                                T* dw, T* dbias) {
  linear_backward_bias(shape, dy, accumulate, dbias);
  multiply_weight_gradient(shape, dy, x, dw, accumulate);
}

/// dx[rows x in] = dy w.
template <class T>
void linear_backward_input(const LinearShape& shape, const T* dy, const T* w, T* dx) {
  multiply_input_gradient(shape, dy, w, dx);
}

/// In place on the gradient of a ReLU's output y: zero wherever y is not positive. `count`
/// elements.
template <class T>
void relu_backward(size_t count, const T* y, T* dy) {
  rows_kernels<T>().relu_backward(count, y, dy);
}

/// `symbols` numbers looked up in table[any x size]; y[symbols x size]. A row of several symbols is
/// their concatenation.
template <class T>
void embedding_forward(size_t symbols, size_t size, const int32_t* x, const T* table, T* y) {
  for (size_t i = 0; i < symbols; ++i) {
    std::copy_n(table + static_cast<size_t>(x[i]) * size, size, y + i * size);
  }
}

/// dtable[x[i]] += dy[i], over all i in order.
template <class T>
void embedding_backward(size_t symbols, size_t size, const int32_t* x, const T* dy, T* dtable) {
  const RowKernels<T>& kernels = rows_kernels<T>();
  for (size_t i = 0; i < symbols; ++i) {
    kernels.add(size, dy + i * size, dtable + static_cast<size_t>(x[i]) * size);
  }
}

/// The sum over rows of -log softmax(logits[rows x classes])[target], in double. logits become the
/// probabilities.
template <class T>
double softmax_cross_entropy_forward(const LogitsShape& shape, const int32_t* targets, T* logits);

/// In place on the probabilities: scale * d(loss sum)/d(logits) = scale * (probability - [class is
/// target]).
template <class T>
void softmax_cross_entropy_backward(const LogitsShape& shape, const int32_t* targets, T scale,
                                    T* probabilities);

}  // namespace rondo::trainer
