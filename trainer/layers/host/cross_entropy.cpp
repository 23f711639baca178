// Softmax and cross-entropy as one layer, because together their gradient is a subtraction. See
// layers.hpp.
#include <cmath>

#include "trainer/layers/host/layers.hpp"
#include "trainer/layers/host/rows.hpp"
#include "trainer/layers/host/softmax.hpp"

namespace rondo::trainer {

template <class T>
double softmax_cross_entropy_forward(const LogitsShape& shape, const int32_t* targets, T* logits) {
  const Softmax<T>& kernels = softmax_kernels<T>();
  double loss = 0;
  for (size_t r = 0; r < shape.rows; ++r) {
    T* row = logits + r * shape.stride;
    const auto target = static_cast<double>(row[static_cast<size_t>(targets[r])]);
    const SoftmaxSum sum = kernels.forward(shape.classes, row);
    loss += std::log(sum.sum) - (target - sum.largest);
  }
  return loss;
}

template <class T>
void softmax_cross_entropy_backward(const LogitsShape& shape, const int32_t* targets, T scale,
                                    T* probabilities) {
  const RowKernels<T>& kernels = rows_kernels<T>();
  for (size_t r = 0; r < shape.rows; ++r) {
    T* row = probabilities + r * shape.stride;
    row[static_cast<size_t>(targets[r])] -= T{1};
    kernels.scale(shape.classes, scale, row);
  }
}

template double softmax_cross_entropy_forward(const LogitsShape&, const int32_t*, float*);
template double softmax_cross_entropy_forward(const LogitsShape&, const int32_t*, double*);
template void softmax_cross_entropy_backward(const LogitsShape&, const int32_t*, float, float*);
template void softmax_cross_entropy_backward(const LogitsShape&, const int32_t*, double, double*);

}  // namespace rondo::trainer
