// See pooling.hpp. Which of four is the largest is as good as random, so it is computed without a
// branch: indices, not choices.
#include "trainer/layers/host/pooling.hpp"

#include <algorithm>

#include "trainer/layers/host/lane_sum.hpp"

namespace rondo::trainer {
namespace {

/// 1 where b is larger than a, or is the first NaN of the two; else 0.
template <class T>
size_t larger(T a, T b) {
  return static_cast<size_t>(!(a >= b)) & static_cast<size_t>(a == a);
}

}  // namespace

template <class T>
void max_pool_forward(const PoolShape& shape, const T* x, T* y, uint8_t* which) {
  const size_t out_width = shape.out_width();
  for (size_t plane = 0; plane < shape.planes; ++plane, x += shape.height * shape.width) {
    for (size_t row = 0; row < shape.out_height(); ++row, y += out_width, which += out_width) {
      for (size_t i = 0; i < out_width; ++i) {
        const T* top = x + 2 * row * shape.width + 2 * i;
        const T* bottom = top + shape.width;
        const size_t in_top = larger(top[0], top[1]), in_bottom = larger(bottom[0], bottom[1]);
        const T two[] = {top[in_top], bottom[in_bottom]};
        const size_t below = larger(two[0], two[1]);
        y[i] = two[below];
        which[i] = static_cast<uint8_t>(in_top + below * (2 + in_bottom - in_top));
      }
    }
  }
}

template <class T>
void max_pool_backward(const PoolShape& shape, const T* dy, const uint8_t* which, T* dx) {
  const size_t out_width = shape.out_width();
  std::fill_n(dx, shape.planes * shape.height * shape.width, T{0});
  for (size_t plane = 0; plane < shape.planes; ++plane, dx += shape.height * shape.width) {
    for (size_t row = 0; row < shape.out_height(); ++row, dy += out_width, which += out_width) {
      T* windows = dx + 2 * row * shape.width;
      for (size_t i = 0; i < out_width; ++i) {
        windows[2 * i + which[i] % 2 + which[i] / 2 * shape.width] = dy[i];
      }
    }
  }
}

template <class T>
void average_pool_forward(size_t planes, size_t pixels, const T* x, T* y) {
  for (size_t plane = 0; plane < planes; ++plane, x += pixels) {
    const double sum = lane_sum(pixels, [&](size_t i) { return static_cast<double>(x[i]); });
    y[plane] = static_cast<T>(sum / static_cast<double>(pixels));
  }
}

template <class T>
void average_pool_backward(size_t planes, size_t pixels, const T* dy, T* dx) {
  for (size_t plane = 0; plane < planes; ++plane, dx += pixels) {
    std::fill_n(dx, pixels, dy[plane] / static_cast<T>(pixels));
  }
}

template void max_pool_forward(const PoolShape&, const float*, float*, uint8_t*);
template void max_pool_forward(const PoolShape&, const double*, double*, uint8_t*);
template void max_pool_backward(const PoolShape&, const float*, const uint8_t*, float*);
template void max_pool_backward(const PoolShape&, const double*, const uint8_t*, double*);
template void average_pool_forward(size_t, size_t, const float*, float*);
template void average_pool_forward(size_t, size_t, const double*, double*);
template void average_pool_backward(size_t, size_t, const float*, float*);
template void average_pool_backward(size_t, size_t, const double*, double*);

}  // namespace rondo::trainer
