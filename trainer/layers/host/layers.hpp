// The layers as plain functions: forward and, by hand, backward. They own nothing, allocate
// nothing, know no ranks, and accept zero rows. Row-major; shapes stand beside each function.
// Gradients are written, or added when `accumulate`. T is float or double.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trainer/layers/host/matmul.hpp"

namespace rondo::trainer {

/// y[rows x out] = x[rows x in] w[out x in]^T + bias[out], and then max(0, y) when `relu`.
template <class T>
void linear_forward(const LinearShape& shape, const T* x, const T* w, const T* bias, bool relu,
                    T* y);

/// dw[out x in] = dy^T x and dbias[out] = the column sums of dy[rows x out].
template <class T>
void linear_backward_parameters(const LinearShape& shape, const T* dy, const T* x, bool accumulate,
                                T* dw, T* dbias);

/// The latter alone.
template <class T>
void linear_backward_bias(const LinearShape& shape, const T* dy, bool accumulate, T* dbias);

/// dx[rows x in] = dy w.
template <class T>
void linear_backward_input(const LinearShape& shape, const T* dy, const T* w, T* dx);

/// In place on the gradient of a ReLU's output y: zero wherever y is not positive. `count`
/// elements.
template <class T>
void relu_backward(size_t count, const T* y, T* dy);

/// `symbols` numbers looked up in table[any x size]; y[symbols x size]. A row of several symbols is
/// their concatenation.
template <class T>
void embedding_forward(size_t symbols, size_t size, const int32_t* x, const T* table, T* y);

/// dtable[x[i]] += dy[i], over all i in order.
template <class T>
void embedding_backward(size_t symbols, size_t size, const int32_t* x, const T* dy, T* dtable);

/// The sum over rows of -log softmax(logits[rows x classes])[target], in double. logits become the
/// probabilities.
template <class T>
double softmax_cross_entropy_forward(size_t rows, size_t classes, const int32_t* targets,
                                     T* logits);

/// In place on the probabilities: scale * d(loss sum)/d(logits) = scale * (probability - [class is
/// target]).
template <class T>
void softmax_cross_entropy_backward(size_t rows, size_t classes, const int32_t* targets, T scale,
                                    T* probabilities);

}  // namespace rondo::trainer
