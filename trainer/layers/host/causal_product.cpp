// See causal_product.hpp.
#include "trainer/layers/host/causal_product.hpp"

#include <algorithm>

#define HWY_TARGET_INCLUDE "trainer/layers/host/causal_product.cpp"
#include "hwy/foreach_target.h"
// Must come after it.
#include "hwy/highway.h"
#include "trainer/base/kernels_for.hpp"
#include "trainer/layers/host/lanes-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::trainer {
namespace HWY_NAMESPACE {
namespace {

/// c's part that is summed up in registers at once: rows by vectors. Eight chains are what two
/// multiply-adds per cycle, of four cycles each, need.
constexpr size_t kRows = 4, kVectors = 2;

/// Terms begin .. end of R rows of c from row i on, and W vectors of them from column j on.
template <size_t R, size_t W, class T, class Tail>
HWY_INLINE void tile(const CausalProduct<T>& p, size_t begin, size_t end, size_t i, size_t j,
                     Tail tail) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  using V = hn::Vec<decltype(d)>;
  V sums[R][W];
  for (size_t r = 0; r < R; ++r) {
    for (size_t w = 0; w < W; ++w) sums[r][w] = hn::Zero(d);
  }
  const T* a = p.a + i * p.a_row + begin * p.a_column;
  const T* b = p.b + begin * p.b_row + j;
  for (size_t l = begin; l < end; ++l, a += p.a_column, b += p.b_row) {
    V terms[W];
    for (size_t w = 0; w < W; ++w) terms[w] = load(d, b + w * lanes, tail);
    for (size_t r = 0; r < R; ++r) {
      const V factor = hn::Set(d, a[r * p.a_row]);
      for (size_t w = 0; w < W; ++w) sums[r][w] = hn::MulAdd(factor, terms[w], sums[r][w]);
    }
  }
  const V alpha = hn::Set(d, p.alpha);
  for (size_t r = 0; r < R; ++r) {
    for (size_t w = 0; w < W; ++w) {
      T* to = p.c + (i + r) * p.c_row + j + w * lanes;
      const V sum = hn::Mul(sums[r][w], alpha);
      store(d, p.accumulate ? hn::Add(load(d, to, tail), sum) : sum, to, tail);
    }
  }
}

/// R rows from row i on, in as many columns and with as many terms as the last, or for kReturn the
/// first, of them needs.
template <size_t R, class T>
HWY_INLINE void rows(const CausalProduct<T>& p, size_t i, size_t j, size_t columns) {
  const size_t lanes = hn::Lanes(hn::ScalableTag<T>());
  const size_t seen = i + R;
  if (p.causal == Causal::kResult && j >= seen) return;
  const size_t begin = p.causal == Causal::kReturn ? std::min(i, p.k) : 0;
  const size_t end = p.causal == Causal::kTerms ? std::min(p.k, seen) : p.k;
  if (columns == kVectors * lanes) {
    tile<R, kVectors>(p, begin, end, i, j, Whole{});
  } else if (columns == lanes) {
    tile<R, 1>(p, begin, end, i, j, Whole{});
  } else {
    tile<R, 1>(p, begin, end, i, j, Part{columns});
  }
}

/// Strips of columns outside, so that their part of b stays in the nearest cache.
template <class T>
void multiply(const CausalProduct<T>& p) {
  const size_t lanes = hn::Lanes(hn::ScalableTag<T>());
  for (size_t j = 0; j < p.n;) {
    const size_t left = p.n - j;
    const size_t columns = left >= kVectors * lanes ? kVectors * lanes : std::min(left, lanes);
    size_t i = 0;
    for (; i + kRows <= p.m; i += kRows) rows<kRows>(p, i, j, columns);
    for (; i < p.m; ++i) rows<1>(p, i, j, columns);
    j += columns;
  }
}

#if HWY_TARGET == HWY_SCALAR
constexpr size_t kSquareBytes = 1;  // nothing to shuffle: element by element
#else
constexpr size_t kSquareBytes = 16;  // of a vector that every instruction set has
#endif

/// to[c][r] = from[r][c], of as many rows as a vector of kSquareBytes has elements.
template <class T>
HWY_INLINE void transpose_square(const T* from, size_t stride, T* to, size_t to_stride) {
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<T, kSquareBytes / sizeof(T)> d;
  const auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + stride);
  if constexpr (sizeof(T) == 4) {
    const auto c = hn::LoadU(d, from + 2 * stride), e = hn::LoadU(d, from + 3 * stride);
    const auto ac_low = hn::InterleaveLower(d, a, c), ac_high = hn::InterleaveUpper(d, a, c);
    const auto be_low = hn::InterleaveLower(d, b, e), be_high = hn::InterleaveUpper(d, b, e);
    hn::StoreU(hn::InterleaveLower(d, ac_low, be_low), d, to);
    hn::StoreU(hn::InterleaveUpper(d, ac_low, be_low), d, to + to_stride);
    hn::StoreU(hn::InterleaveLower(d, ac_high, be_high), d, to + 2 * to_stride);
    hn::StoreU(hn::InterleaveUpper(d, ac_high, be_high), d, to + 3 * to_stride);
  } else {
    hn::StoreU(hn::InterleaveLower(d, a, b), d, to);
    hn::StoreU(hn::InterleaveUpper(d, a, b), d, to + to_stride);
  }
#else
  *to = *from;
  static_cast<void>(stride + to_stride);
#endif
}

template <class T>
void transpose(size_t rows, size_t columns, const T* from, size_t stride, T* to) {
  constexpr size_t kSide = std::max<size_t>(1, kSquareBytes / sizeof(T));
  const size_t square_rows = rows / kSide * kSide, square_columns = columns / kSide * kSide;
  for (size_t r = 0; r < square_rows; r += kSide) {
    for (size_t c = 0; c < square_columns; c += kSide) {
      transpose_square(from + r * stride + c, stride, to + c * rows + r, rows);
    }
  }
  for (size_t r = 0; r < rows; ++r) {
    const size_t first = r < square_rows ? square_columns : 0;
    for (size_t c = first; c < columns; ++c) to[c * rows + r] = from[r * stride + c];
  }
}

CausalProducts<float> float_causal_products() {
  return {.multiply = multiply<float>, .transpose = transpose<float>};
}
CausalProducts<double> double_causal_products() {
  return {.multiply = multiply<double>, .transpose = transpose<double>};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rondo::trainer {

HWY_EXPORT(float_causal_products);
HWY_EXPORT(double_causal_products);

template <class T>
const CausalProducts<T>& causal_products_kernels() {
  return kernels_for<T>(HWY_DYNAMIC_DISPATCH(float_causal_products),
                        HWY_DYNAMIC_DISPATCH(double_causal_products));
}

template const CausalProducts<float>& causal_products_kernels();
template const CausalProducts<double>& causal_products_kernels();

}  // namespace rondo::trainer
#endif
