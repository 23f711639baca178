// Embedding of symbols. See layers.hpp.
#include <algorithm>

#include "trainer/layers/host/layers.hpp"
#include "trainer/layers/host/rows.hpp"

namespace rondo::trainer {
namespace {

template <class T>
T* row(T* table, int32_t symbol, size_t size) {
  return table + static_cast<size_t>(symbol) * size;
}

}  // namespace

template <class T>
void embedding_forward(size_t symbols, size_t size, const int32_t* x, const T* table, T* y) {
  for (size_t i = 0; i < symbols; ++i) std::copy_n(row(table, x[i], size), size, y + i * size);
}

template <class T>
void embedding_backward(size_t symbols, size_t size, const int32_t* x, const T* dy, T* dtable) {
  const RowKernels<T>& kernels = rows_kernels<T>();
  for (size_t i = 0; i < symbols; ++i) kernels.add(size, dy + i * size, row(dtable, x[i], size));
}

template void embedding_forward(size_t, size_t, const int32_t*, const float*, float*);
template void embedding_forward(size_t, size_t, const int32_t*, const double*, double*);
template void embedding_backward(size_t, size_t, const int32_t*, const float*, float*);
template void embedding_backward(size_t, size_t, const int32_t*, const double*, double*);

}  // namespace rondo::trainer
