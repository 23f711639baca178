// See softmax.hpp.
#include "trainer/layers/host/softmax.hpp"

#include <algorithm>
#include <limits>

#define HWY_TARGET_INCLUDE "trainer/layers/host/softmax.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"
#include "trainer/base/kernels_for.hpp"
#include "trainer/layers/host/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::trainer {
namespace HWY_NAMESPACE {
namespace {

/// Tail says whether the last vector may reach past the row; there it leaves zeros.
template <class Tail, class T>
HWY_INLINE SoftmaxSum softmax(size_t count, T* row) {
  const hn::ScalableTag<T> d;
  const auto least = hn::Set(d, -std::numeric_limits<T>::infinity());
  // It does not matter that a maximum may overlook a NaN: the sum will not.
  const auto greater = [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); };
  const auto maxima = fold<Tail>(d, count, least, greater, [&](size_t i, auto part) HWY_ATTR {
    return load(d, row + i, part);
  });
  const T largest = hn::GetLane(hn::MaxOfLanes(d, maxima));
  const auto subtrahend = hn::Set(d, largest);
  constexpr size_t kChunk = 1024;  // added in T; the chunks' sums in double
  double sum = 0;
  for (size_t first = 0; first < count; first += kChunk) {
    T* chunk = row + first;
    sum += sum_of<Tail>(d, std::min(kChunk, count - first), [&](size_t i, auto part) HWY_ATTR {
      const auto power = exp_of_negative(d, hn::Sub(load(d, chunk + i, part), subtrahend));
      store(d, power, chunk + i, part);
      return power;
    });
  }
  const auto reciprocal = hn::Set(d, static_cast<T>(1 / sum));
  for_vectors<Tail>(d, count, [&](size_t i, auto part) HWY_ATTR {
    const auto probability = hn::Mul(load(d, row + i, part), reciprocal);
    store(d, live(d, probability, hn::Zero(d), part), row + i, part);
  });
  return {.largest = static_cast<double>(largest), .sum = sum};
}

template <class T>
SoftmaxSum forward(size_t count, T* row) {
  return softmax<Part>(count, row);
}

/// For each row the elements that it sees, rounded up to vectors where the row is long enough.
template <class T>
HWY_INLINE size_t whole_vectors(size_t seen, size_t width) {
  const size_t lanes = hn::Lanes(hn::ScalableTag<T>());
  const size_t rounded = (seen + lanes - 1) / lanes * lanes;
  return rounded <= width ? rounded : seen;
}

template <class T>
void causal_forward(const CausalBlock& block, T* scores) {
  for (size_t r = 0; r < block.rows; ++r) {
    T* row = scores + r * block.width;
    const size_t seen = block.first + r + 1, written = whole_vectors<T>(seen, block.width);
    if (written > seen) {
      softmax<Padded>(seen, row);
    } else {
      softmax<Part>(seen, row);
    }
    std::fill(row + written, row + block.width, T{0});
  }
}

/// With p the probabilities: factor p (dp - sum(dp p)).
template <class T>
void causal_backward(const CausalBlock& block, T factor, const T* probabilities, T* gradient) {
  const hn::ScalableTag<T> d;
  for (size_t r = 0; r < block.rows; ++r) {
    const T* p = probabilities + r * block.width;
    T* row = gradient + r * block.width;
    const size_t seen = block.first + r + 1, written = whole_vectors<T>(seen, block.width);
    const auto product = hn::Set(d, sum_of(d, written, [&](size_t i, auto part) HWY_ATTR {
                                   return hn::Mul(load(d, p + i, part), load(d, row + i, part));
                                 }));
    const auto factors = hn::Set(d, factor);
    for_vectors(d, written, [&](size_t i, auto part) HWY_ATTR {
      const auto difference = hn::Sub(load(d, row + i, part), product);
      store(d, hn::Mul(hn::Mul(load(d, p + i, part), factors), difference), row + i, part);
    });
    std::fill(row + written, row + block.width, T{0});
  }
}

template <class T>
Softmax<T> softmax_of() {
  return {.forward = forward<T>,
          .causal_forward = causal_forward<T>,
          .causal_backward = causal_backward<T>};
}
Softmax<float> float_softmax() { return softmax_of<float>(); }
Softmax<double> double_softmax() { return softmax_of<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::trainer {

HWY_EXPORT(float_softmax);
HWY_EXPORT(double_softmax);

template <class T>
const Softmax<T>& softmax_kernels() {
  return kernels_for<T>(HWY_DYNAMIC_DISPATCH(float_softmax), HWY_DYNAMIC_DISPATCH(double_softmax));
}

template const Softmax<float>& softmax_kernels();
template const Softmax<double>& softmax_kernels();

}  // namespace rondo::trainer
#endif
