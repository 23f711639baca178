// See gemm.hpp. Extents of zero are settled here, because BLAS implementations differ about them.
#include "trainer/layers/gemm.hpp"

#include <cblas.h>

#include <algorithm>
#include <type_traits>

namespace rondo::trainer {

template <class T>
void multiply(const MatrixProduct& product, const T* a, const T* b, bool accumulate, T* c) {
  const auto [rows, columns, inner, transpose_a, transpose_b] = product;
  if (rows == 0 || columns == 0) return;
  if (inner == 0) {
    if (!accumulate) std::fill_n(c, rows * columns, T{0});
    return;
  }
  const auto m = static_cast<blasint>(rows), n = static_cast<blasint>(columns),
             k = static_cast<blasint>(inner);
  const auto op_a = transpose_a ? CblasTrans : CblasNoTrans;
  const auto op_b = transpose_b ? CblasTrans : CblasNoTrans;
  const blasint lda = transpose_a ? m : k, ldb = transpose_b ? k : n;
  const T beta = accumulate ? T{1} : T{0};
  if constexpr (std::is_same_v<T, float>) {
    cblas_sgemm(CblasRowMajor, op_a, op_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, n);
  } else {
    cblas_dgemm(CblasRowMajor, op_a, op_b, m, n, k, 1.0, a, lda, b, ldb, beta, c, n);
  }
}

template void multiply(const MatrixProduct&, const float*, const float*, bool, float*);
template void multiply(const MatrixProduct&, const double*, const double*, bool, double*);

}  // namespace rondo::trainer
