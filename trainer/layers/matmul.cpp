// See matmul.hpp. Row counts of zero are settled here, because BLAS implementations differ about
// them.
#include "trainer/layers/matmul.hpp"

#include <cblas.h>

#include <algorithm>

namespace rondo::trainer {
namespace {

/// c[m x n] = a b + beta c; lda, ldb, ldc are the row lengths as stored.
struct Product {
  CBLAS_TRANSPOSE transpose_a, transpose_b;
  size_t m, n, k, lda, ldb;
};

void gemm(const Product& p, const float* a, const float* b, float beta, float* c) {
  cblas_sgemm(CblasRowMajor, p.transpose_a, p.transpose_b, static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), 1.0f, a,
              static_cast<blasint>(p.lda), b, static_cast<blasint>(p.ldb), beta, c,
              static_cast<blasint>(p.n));
}

void gemm(const Product& p, const double* a, const double* b, double beta, double* c) {
  cblas_dgemm(CblasRowMajor, p.transpose_a, p.transpose_b, static_cast<blasint>(p.m),
              static_cast<blasint>(p.n), static_cast<blasint>(p.k), 1.0, a,
              static_cast<blasint>(p.lda), b, static_cast<blasint>(p.ldb), beta, c,
              static_cast<blasint>(p.n));
}

}  // namespace

template <class T>
void multiply_forward(const LinearShape& shape, const T* x, const T* w, T* y) {
  if (shape.rows == 0) return;
  const auto [rows, in, out] = shape;
  gemm({.transpose_a = CblasNoTrans,
        .transpose_b = CblasTrans,
        .m = rows,
        .n = out,
        .k = in,
        .lda = in,
        .ldb = in},
       x, w, T{0}, y);
}

template <class T>
void multiply_input_gradient(const LinearShape& shape, const T* dy, const T* w, T* dx) {
  if (shape.rows == 0) return;
  const auto [rows, in, out] = shape;
  gemm({.transpose_a = CblasNoTrans,
        .transpose_b = CblasNoTrans,
        .m = rows,
        .n = in,
        .k = out,
        .lda = out,
        .ldb = in},
       dy, w, T{0}, dx);
}

template <class T>
void multiply_weight_gradient(const LinearShape& shape, const T* dy, const T* x, T* dw,
                              bool accumulate) {
  const auto [rows, in, out] = shape;
  if (rows == 0) {
    if (!accumulate) std::fill_n(dw, out * in, T{0});
    return;
  }
  gemm({.transpose_a = CblasTrans,
        .transpose_b = CblasNoTrans,
        .m = out,
        .n = in,
        .k = rows,
        .lda = out,
        .ldb = in},
       dy, x, accumulate ? T{1} : T{0}, dw);
}

void set_matmul_threads(int threads) { openblas_set_num_threads(threads); }

template void multiply_forward(const LinearShape&, const float*, const float*, float*);
template void multiply_forward(const LinearShape&, const double*, const double*, double*);
template void multiply_input_gradient(const LinearShape&, const float*, const float*, float*);
template void multiply_input_gradient(const LinearShape&, const double*, const double*, double*);
template void multiply_weight_gradient(const LinearShape&, const float*, const float*, float*,
                                       bool);
template void multiply_weight_gradient(const LinearShape&, const double*, const double*, double*,
                                       bool);

}  // namespace rondo::trainer
