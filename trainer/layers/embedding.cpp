// Embedding of bytes. See layers.hpp.
#include <algorithm>

#include "trainer/layers/layers.hpp"

namespace rondo::trainer {

template <class T>
void embedding_forward(size_t symbols, size_t size, const uint8_t* x, const T* table, T* y) {
  for (size_t i = 0; i < symbols; ++i) std::copy_n(table + x[i] * size, size, y + i * size);
}

template <class T>
void embedding_backward(size_t symbols, size_t size, const uint8_t* x, const T* dy, bool accumulate,
                        T* dtable) {
  if (!accumulate) std::fill_n(dtable, 256 * size, T{0});
  for (size_t i = 0; i < symbols; ++i) {
    T* row = dtable + x[i] * size;
    for (size_t c = 0; c < size; ++c) row[c] += dy[i * size + c];
  }
}

template void embedding_forward(size_t, size_t, const uint8_t*, const float*, float*);
template void embedding_forward(size_t, size_t, const uint8_t*, const double*, double*);
template void embedding_backward(size_t, size_t, const uint8_t*, const float*, bool, float*);
template void embedding_backward(size_t, size_t, const uint8_t*, const double*, bool, double*);

}  // namespace rondo::trainer
