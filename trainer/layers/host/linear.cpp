// Linear layer and ReLU. See layers.hpp.
#include <algorithm>

#include "trainer/layers/host/layers.hpp"
#include "trainer/layers/host/rows.hpp"

namespace rondo::trainer {

template <class T>
void linear_forward(const LinearShape& shape, const T* x, const T* w, const T* bias, bool relu,
                    T* y) {
  multiply_forward(shape, x, w, y);
  rows_kernels<T>().add_bias(shape.rows, shape.out, bias, relu, y);
}

template <class T>
void linear_backward_parameters(const LinearShape& shape, const T* dy, const T* x, bool accumulate,
                                T* dw, T* dbias) {
  linear_backward_bias(shape, dy, accumulate, dbias);
  multiply_weight_gradient(shape, dy, x, dw, accumulate);
}

template <class T>
void linear_backward_bias(const LinearShape& shape, const T* dy, bool accumulate, T* dbias) {
  if (!accumulate) std::fill_n(dbias, shape.out, T{0});
  rows_kernels<T>().add_columns(shape.rows, shape.out, dy, dbias);
}

template <class T>
void linear_backward_input(const LinearShape& shape, const T* dy, const T* w, T* dx) {
  multiply_input_gradient(shape, dy, w, dx);
}

template <class T>
void relu_backward(size_t count, const T* y, T* dy) {
  rows_kernels<T>().relu_backward(count, y, dy);
}

template void linear_forward(const LinearShape&, const float*, const float*, const float*, bool,
                             float*);
template void linear_forward(const LinearShape&, const double*, const double*, const double*, bool,
                             double*);
template void linear_backward_parameters(const LinearShape&, const float*, const float*, bool,
                                         float*, float*);
template void linear_backward_parameters(const LinearShape&, const double*, const double*, bool,
                                         double*, double*);
template void linear_backward_bias(const LinearShape&, const float*, bool, float*);
template void linear_backward_bias(const LinearShape&, const double*, bool, double*);
template void linear_backward_input(const LinearShape&, const float*, const float*, float*);
template void linear_backward_input(const LinearShape&, const double*, const double*, double*);
template void relu_backward(size_t, const float*, float*);
template void relu_backward(size_t, const double*, double*);

}  // namespace rondo::trainer
