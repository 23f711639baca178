// One matrix product with either factor transposed, for layers whose products are not those of a
// linear layer (matmul.hpp). OpenBLAS.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// Row-major, without gaps. a: [m x k], or [k x m] if transposed; b: [k x n], or [n x k].
struct MatrixProduct {
  size_t m, n, k;
  bool transpose_a = false, transpose_b = false;
};

/// c[m x n] = a b, or c += a b when `accumulate`. Any extent may be zero.
template <class T>
void multiply(const MatrixProduct& product, const T* a, const T* b, bool accumulate, T* c);

}  // namespace rondo::trainer
