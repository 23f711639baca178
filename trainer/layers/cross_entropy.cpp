// Softmax and cross-entropy as one layer, because together their gradient is a subtraction. See
// layers.hpp.
#include <algorithm>
#include <cmath>

#include "trainer/layers/layers.hpp"

namespace rondo::trainer {

template <class T>
double softmax_cross_entropy_forward(size_t rows, size_t classes, const uint8_t* targets,
                                     T* logits) {
  double loss = 0;
  for (size_t r = 0; r < rows; ++r) {
    T* row = logits + r * classes;
    const T largest = *std::max_element(row, row + classes);  // so that exp cannot overflow
    const T target = row[targets[r]] - largest;
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) {
      row[c] = std::exp(row[c] - largest);
      sum += row[c];
    }
    loss += std::log(sum) - static_cast<double>(target);
    const T reciprocal = static_cast<T>(1 / sum);
    for (size_t c = 0; c < classes; ++c) row[c] *= reciprocal;
  }
  return loss;
}

template <class T>
void softmax_cross_entropy_backward(size_t rows, size_t classes, const uint8_t* targets, T scale,
                                    T* probabilities) {
  for (size_t r = 0; r < rows; ++r) {
    T* row = probabilities + r * classes;
    row[targets[r]] -= T{1};
    for (size_t c = 0; c < classes; ++c) row[c] *= scale;
  }
}

template double softmax_cross_entropy_forward(size_t, size_t, const uint8_t*, float*);
template double softmax_cross_entropy_forward(size_t, size_t, const uint8_t*, double*);
template void softmax_cross_entropy_backward(size_t, size_t, const uint8_t*, float, float*);
template void softmax_cross_entropy_backward(size_t, size_t, const uint8_t*, double, double*);

}  // namespace rondo::trainer
