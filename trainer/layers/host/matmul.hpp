// Matrix products. The only mathematics of the trainer that is not written here: OpenBLAS.
#pragma once

#include <cstddef>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// A row-major matrix, or a part of one: `stride` elements from a row to the next.
template <class T>
struct Matrix {
  T* data;
  size_t stride;
  bool transposed = false;  // it is the transpose of what lies there
};

/// c = alpha a b + beta c; a: [m x k], b: [k x n], c: [m x n]. With beta = 0 c is only written.
template <class T>
struct Product {
  size_t m, n, k;
  T alpha = 1;
  Matrix<const T> a, b;
  T beta = 0;
  Matrix<T> c;  // not transposed
};

template <class T>
void multiply(const Product<T>& product);

/// Of a linear layer. x: [rows x in], w: [out x in], without gaps; y and its gradient: [rows x out].
struct LinearShape {
  size_t rows, in, out;
  size_t stride = 0;  // from a row of y to the next; 0: out

  size_t y_stride() const { return stride == 0 ? out : stride; }
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

/// Some rows of a weight's gradient.
struct WeightPanel {
  size_t first, count;
};

/// The same for these rows of dw alone; dw is where the whole begins.
template <class T>
void multiply_weight_gradient(const LinearShape& shape, const WeightPanel& panel, const T* dy,
                              const T* x, T* dw, bool accumulate);

/// Prepares products of up to `threads` threads, for the whole process; before the first product.
/// kResourceExhausted where OpenBLAS would not find its work memory: it would try again without end.
Status set_matmul_threads(int threads);
/// The processor whose code the library has chosen.
const char* matmul_core();

}  // namespace rondo::trainer
