// See clip.hpp.
#include "trainer/optim/clip.hpp"

#include "rondo/status.hpp"
#include "trainer/optim/simd.hpp"

namespace rondo::trainer {

template <class T>
double block_sum(const T* values, size_t n) {
  RONDO_CHECK(n <= kNormBlock, "a block of %zu elements", n);
  return simd::sum_of_squares(values, n);
}

double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient > 1 ? 1 : coefficient;
}

template <class T>
void scale(T* values, size_t count, T factor) {
  simd::multiply(values, count, factor);
}

template <class T>
bool all_finite(const T* values, size_t count) {
  return simd::all_finite(values, count);
}

template double block_sum(const float*, size_t);
template double block_sum(const double*, size_t);
template void scale(float*, size_t, float);
template void scale(double*, size_t, double);
template bool all_finite(const float*, size_t);
template bool all_finite(const double*, size_t);

}  // namespace rondo::trainer
