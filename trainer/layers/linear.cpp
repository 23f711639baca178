// Linear layer and ReLU. See layers.hpp.
#include <algorithm>

#include "trainer/layers/layers.hpp"

namespace rondo::trainer {

template <class T>
void linear_forward(const LinearShape& shape, const T* x, const T* w, const T* bias, bool relu,
                    T* y) {
  multiply_forward(shape, x, w, y);
  for (size_t r = 0; r < shape.rows; ++r) {
    T* row = y + r * shape.out;
    for (size_t c = 0; c < shape.out; ++c) row[c] += bias[c];
    if (!relu) continue;
    for (size_t c = 0; c < shape.out; ++c) row[c] = row[c] < T{0} ? T{0} : row[c];  // NaN stays
  }
}

template <class T>
void linear_backward_parameters(const LinearShape& shape, const T* dy, const T* x, bool accumulate,
                                T* dw, T* dbias) {
  multiply_weight_gradient(shape, dy, x, dw, accumulate);
  if (!accumulate) std::fill_n(dbias, shape.out, T{0});
  for (size_t r = 0; r < shape.rows; ++r) {
    const T* row = dy + r * shape.out;
    for (size_t c = 0; c < shape.out; ++c) dbias[c] += row[c];
  }
}

template <class T>
void linear_backward_input(const LinearShape& shape, const T* dy, const T* w, T* dx) {
  multiply_input_gradient(shape, dy, w, dx);
}

template <class T>
void relu_backward(size_t count, const T* y, T* dy) {
  for (size_t i = 0; i < count; ++i) dy[i] = y[i] > T{0} ? dy[i] : T{0};
}

template void linear_forward(const LinearShape&, const float*, const float*, const float*, bool,
                             float*);
template void linear_forward(const LinearShape&, const double*, const double*, const double*, bool,
                             double*);
template void linear_backward_parameters(const LinearShape&, const float*, const float*, bool,
                                         float*, float*);
template void linear_backward_parameters(const LinearShape&, const double*, const double*, bool,
                                         double*, double*);
template void linear_backward_input(const LinearShape&, const float*, const float*, float*);
template void linear_backward_input(const LinearShape&, const double*, const double*, double*);
template void relu_backward(size_t, const float*, float*);
template void relu_backward(size_t, const double*, double*);

}  // namespace rondo::trainer
