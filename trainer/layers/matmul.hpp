// The three matrix products of a linear layer. The only mathematics of the trainer that is not
// written here: OpenBLAS.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// Row-major matrices throughout. x: [rows x in], w: [out x in], y: [rows x out].
struct LinearShape {
  size_t rows, in, out;
};

/// y = x w^T
template <class T>
void multiply_forward(const LinearShape& shape, const T* x, const T* w, T* y);

/// dx = dy w
template <class T>
void multiply_input_gradient(const LinearShape& shape, const T* dy, const T* w, T* dx);

/// dw = dy^T x, or dw += when `accumulate`
template <class T>
void multiply_weight_gradient(const LinearShape& shape, const T* dy, const T* x, T* dw,
                              bool accumulate);

/// Threads that one product may use, for the whole process.
void set_matmul_threads(int threads);

}  // namespace rondo::trainer
