// The matrix products of causal attention on the diagonal: small, strided, and half of them zeros
// that a query does not see. BLAS would multiply those too, and take longer to begin than such a
// product to end. Refuses to be a general product: operands are expected to stay in the caches.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// What need not be computed, where query i sees the keys 0 .. i.
enum class Causal {
  kResult,  // rows of c are queries and its columns keys: unseen ones may be left as they are
  kTerms,   // rows of c and a are queries, columns of a keys: unseen ones count as zero
  kReturn,  // rows of c are keys, columns of a queries: likewise
};

/// c = alpha a b, or c += when `accumulate`; a: [m x k], b: [k x n], c: [m x n].
template <class T>
struct CausalProduct {
  Causal causal;
  size_t m, n, k;
  T alpha = 1;
  const T* a;  // element (i, l) is a[i * a_row + l * a_column]
  size_t a_row, a_column;
  const T* b;
  size_t b_row;
  bool accumulate = false;
  T* c;
  size_t c_row;
};

template <class T>
struct CausalProducts {
  void (*multiply)(const CausalProduct<T>& product);
  /// to[columns x rows] = from[rows x columns]^T, whose rows begin every `stride` elements.
  void (*transpose)(size_t rows, size_t columns, const T* from, size_t stride, T* to);
};

template <class T>
const CausalProducts<T>& causal_products_kernels();

}  // namespace rondo::trainer
