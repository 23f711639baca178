// Rows of numbers as vectors, for the instruction set that foreach_target.h is compiling for: loops
// with an incomplete last vector, sums, the exponential function. Included once per instruction
// set; everything lives in HWY_NAMESPACE, so that no instruction set's code can be linked in place
// of another's. What belongs to one vector is decided by indices, never by addresses: the same
// numbers give the same bits wherever they lie.
#if defined(RONDO_TRAINER_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef RONDO_TRAINER_LANES_INL
#undef RONDO_TRAINER_LANES_INL
#else
#define RONDO_TRAINER_LANES_INL
#endif

#include <cstddef>
#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace rondo::trainer {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// How much of a vector a row still has: all of it, or its first `count` lanes.
struct Whole {};
struct Part {
  size_t count;
};
/// The same, but the memory behind those lanes is the row's own: it may be read and written.
struct Padded {
  size_t count;
};

template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from, Whole) {
  return hn::LoadU(d, from);
}
template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from, Padded) {
  return hn::LoadU(d, from);
}
template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* from, Part part) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
  for (size_t i = 0; i < part.count; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
}

template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> v, T* to, Whole) {
  hn::StoreU(v, d, to);
}
template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> v, T* to, Padded) {
  hn::StoreU(v, d, to);
}
template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> v, T* to, Part part) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < part.count; ++i) to[i] = lanes[i];
}

/// v where the row has elements, `otherwise` past its end.
template <class D>
HWY_INLINE hn::Vec<D> live(D, hn::Vec<D> v, hn::Vec<D>, Whole) {
  return v;
}
template <class D, class Tail>
HWY_INLINE hn::Vec<D> live(D d, hn::Vec<D> v, hn::Vec<D> otherwise, Tail tail) {
  return hn::IfThenElse(hn::FirstN(d, tail.count), v, otherwise);
}

/// body(first element, how much of the vector there is) for each vector of `count` elements.
template <class Tail = Part, class D, class Body>
HWY_INLINE void for_vectors(D d, size_t count, const Body& body) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, Whole{});
  if (i < count) body(i, Tail{count - i});
}

/// combine() over all vectors of term(first element, how much of the vector there is), in four
/// chains, because one would wait for each result. What lies past the end counts as `neutral`.
template <class Tail, class D, class Combine, class Term>
HWY_INLINE hn::Vec<D> fold(D d, size_t count, hn::Vec<D> neutral, const Combine& combine,
                           const Term& term) {
  const size_t lanes = hn::Lanes(d);
  auto a = neutral, b = neutral, c = neutral, e = neutral;
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = combine(a, term(i, Whole{}));
    b = combine(b, term(i + lanes, Whole{}));
    c = combine(c, term(i + 2 * lanes, Whole{}));
    e = combine(e, term(i + 3 * lanes, Whole{}));
  }
  for (; i + lanes <= count; i += lanes) a = combine(a, term(i, Whole{}));
  if (i < count) {
    const Tail tail{count - i};
    b = combine(b, live(d, term(i, tail), neutral, tail));
  }
  return combine(combine(a, b), combine(c, e));
}

template <class Tail = Part, class D, class Term>
HWY_INLINE hn::TFromD<D> sum_of(D d, size_t count, const Term& term) {
  const auto add = [](hn::Vec<D> x, hn::Vec<D> y) HWY_ATTR { return hn::Add(x, y); };
  return hn::GetLane(hn::SumOfLanes(d, fold<Tail>(d, count, hn::Zero(d), add, term)));
}

/// kCount terms of the Taylor series of e^r from the power kFrom on, without that power of r;
/// powers: r, r^2, r^4, r^8. By halves (Estrin 1960), so that a term need not wait for all before
/// it.
template <int kCount, int kFrom, class D>
HWY_INLINE hn::Vec<D> exp_terms(D d, const hn::Vec<D>* powers) {
  if constexpr (kCount == 1) {
    constexpr double kFactorial = [] {
      double product = 1;
      for (int k = 2; k <= kFrom; ++k) product *= k;
      return product;
    }();
    return hn::Set(d, static_cast<hn::TFromD<D>>(1 / kFactorial));
  } else {
    constexpr int kHalf = kCount > 8 ? 8 : kCount > 4 ? 4 : kCount > 2 ? 2 : 1;
    constexpr int kPower = kHalf == 8 ? 3 : kHalf == 4 ? 2 : kHalf == 2 ? 1 : 0;
    return hn::MulAdd(exp_terms<kCount - kHalf, kFrom + kHalf>(d, powers), powers[kPower],
                      exp_terms<kHalf, kFrom>(d, powers));
  }
}

/// e^x for x <= 0, within 2 units in the last place; 0 below the logarithm of the least normal
/// number (denormals would be slow to compute with); NaN of NaN. x = n ln 2 + r with
/// |r| <= ln 2 / 2, and a polynomial of r whose remainder is below an eighth of the last place.
template <class D>
HWY_INLINE hn::Vec<D> exp_of_negative(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  constexpr bool kSingle = std::is_same_v<T, float>;
  constexpr int kTerms = kSingle ? 8 : 14, kFractionBits = kSingle ? 23 : 52;
  // 1.5 * 2^kFractionBits: a sum with it is rounded to an integer, which is then its low bits.
  constexpr T kRounder = kSingle ? T(0x1.8p23) : T(0x1.8p52);
  // ln 2 in two parts; n times the first is exact.
  constexpr T kLn2High = kSingle ? T(0.693359375) : T(0x1.62e42feep-1);
  constexpr T kLn2Low = kSingle ? T(-2.12194440054690583e-4) : T(1.90821492927058770e-10);
  constexpr T kLowest = kSingle ? T(-87.3) : T(-708.3);

  const auto rounded = hn::MulAdd(x, hn::Set(d, T(1.44269504088896341)), hn::Set(d, kRounder));
  const auto n = hn::Sub(rounded, hn::Set(d, kRounder));
  const auto r = hn::NegMulAdd(n, hn::Set(d, kLn2Low), hn::NegMulAdd(n, hn::Set(d, kLn2High), x));
  const auto square = hn::Mul(r, r), fourth = hn::Mul(square, square);
  const hn::Vec<D> powers[] = {r, square, fourth, hn::Mul(fourth, fourth)};
  const hn::RebindToSigned<D> di;
  const auto power = hn::BitCast(d, hn::Add(hn::ShiftLeft<kFractionBits>(hn::BitCast(di, rounded)),
                                            hn::BitCast(di, hn::Set(d, T(1)))));
  // A product, because adding to the exponent could turn a NaN into a number.
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, kLowest)),
                            hn::Mul(exp_terms<kTerms, 0>(d, powers), power));
}

}  // namespace HWY_NAMESPACE
}  // namespace rondo::trainer
HWY_AFTER_NAMESPACE();

#endif
