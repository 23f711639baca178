// See rows.hpp.
#include "trainer/layers/host/rows.hpp"

#define HWY_TARGET_INCLUDE "trainer/layers/host/rows.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"
#include "trainer/base/kernels_for.hpp"
#include "trainer/layers/host/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::trainer {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void add_bias(size_t rows, size_t width, const T* bias, bool relu, T* y) {
  const hn::ScalableTag<T> d;
  for (size_t r = 0; r < rows; ++r) {
    T* row = y + r * width;
    if (relu) {
      for_vectors(d, width, [&](size_t i, auto part) HWY_ATTR {
        const auto sum = hn::Add(load(d, row + i, part), load(d, bias + i, part));
        store(d, hn::IfThenZeroElse(hn::Lt(sum, hn::Zero(d)), sum), row + i, part);
      });
    } else {
      for_vectors(d, width, [&](size_t i, auto part) HWY_ATTR {
        store(d, hn::Add(load(d, row + i, part), load(d, bias + i, part)), row + i, part);
      });
    }
  }
}

template <class T>
void add(size_t count, const T* from, T* to) {
  const hn::ScalableTag<T> d;
  for_vectors(d, count, [&](size_t i, auto part) HWY_ATTR {
    store(d, hn::Add(load(d, to + i, part), load(d, from + i, part)), to + i, part);
  });
}

/// Four rows at a time, so that the sums are read and written a quarter as often.
template <class T>
void add_columns(size_t rows, size_t width, const T* x, T* sums) {
  const hn::ScalableTag<T> d;
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const T* row = x + r * width;
    for_vectors(d, width, [&](size_t i, auto part) HWY_ATTR {
      const auto low = hn::Add(load(d, row + i, part), load(d, row + width + i, part));
      const auto high =
          hn::Add(load(d, row + 2 * width + i, part), load(d, row + 3 * width + i, part));
      store(d, hn::Add(load(d, sums + i, part), hn::Add(low, high)), sums + i, part);
    });
  }
  for (; r < rows; ++r) add(width, x + r * width, sums);
}

template <class T>
void scale(size_t count, T factor, T* values) {
  const hn::ScalableTag<T> d;
  for_vectors(d, count, [&](size_t i, auto part) HWY_ATTR {
    store(d, hn::Mul(load(d, values + i, part), hn::Set(d, factor)), values + i, part);
  });
}

template <class T>
void relu_backward(size_t count, const T* y, T* dy) {
  const hn::ScalableTag<T> d;
  for_vectors(d, count, [&](size_t i, auto part) HWY_ATTR {
    const auto passes = hn::Gt(load(d, y + i, part), hn::Zero(d));
    store(d, hn::IfThenElseZero(passes, load(d, dy + i, part)), dy + i, part);
  });
}

template <class T>
RowKernels<T> rows_of() {
  return {.add_bias = add_bias<T>,
          .add_columns = add_columns<T>,
          .add = add<T>,
          .scale = scale<T>,
          .relu_backward = relu_backward<T>};
}
RowKernels<float> float_rows() { return rows_of<float>(); }
RowKernels<double> double_rows() { return rows_of<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::trainer {

HWY_EXPORT(float_rows);
HWY_EXPORT(double_rows);

template <class T>
const RowKernels<T>& rows_kernels() {
  return kernels_for<T>(HWY_DYNAMIC_DISPATCH(float_rows), HWY_DYNAMIC_DISPATCH(double_rows));
}

template const RowKernels<float>& rows_kernels();
template const RowKernels<double>& rows_kernels();

}  // namespace rondo::trainer
#endif
