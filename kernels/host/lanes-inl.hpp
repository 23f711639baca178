// Vectors of elements, for the instruction set that foreach_target.h is compiling for: load,
// convert, operate, store. The vector counterpart of element.hpp, equal to it bit for bit. Included
// once per instruction set, by move-inl.hpp only; all code is in HWY_NAMESPACE, so that one
// instruction set's code cannot be linked in place of another's.
#if defined(RONDO_KERNELS_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef RONDO_KERNELS_LANES_INL
#undef RONDO_KERNELS_LANES_INL
#else
#define RONDO_KERNELS_LANES_INL
#endif

#include "hwy/highway.h"
#include "kernels/element.hpp"

HWY_BEFORE_NAMESPACE();
namespace rondo::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V>
HWY_INLINE V combine(Sum, D, V a, V b) {
  return hn::Add(a, b);
}

template <class D, class V>
HWY_INLINE V combine(Prod, D d, V a, V b) {
  using T = hn::TFromD<D>;
  if constexpr (sizeof(T) == 1) {  // no 8-bit product: even and odd bytes as 16-bit ones
    const hn::Repartition<uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0xff));
    const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16));
    return hn::BitCast(d, hn::Or(even, hn::ShiftLeft<8>(odd)));
  } else if constexpr (sizeof(T) == 8 &&
                       std::is_integral_v<T>) {  // nor a 64-bit one: from 32 x 32 -> 64
    const hn::Repartition<uint32_t, D> d32;
    const hn::Repartition<uint64_t, D> d64;
    const auto a32 = hn::BitCast(d32, a), b32 = hn::BitCast(d32, b);
    const auto a_high = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, a)));
    const auto b_high = hn::BitCast(d32, hn::ShiftRight<32>(hn::BitCast(d64, b)));
    const auto cross = hn::Add(hn::MulEven(a_high, b32), hn::MulEven(a32, b_high));
    return hn::BitCast(d, hn::Add(hn::MulEven(a32, b32), hn::ShiftLeft<32>(cross)));
  } else {
    return hn::Mul(a, b);
  }
}

// x86's minimum returns its second operand when both are zeros or one is NaN. Computing it in both
// orders and combining the bits with "or" gives -0 if either is, and all exponent bits set, so a
// NaN, if either is NaN.
template <class D, class V>
HWY_INLINE V combine(Min, D, V a, V b) {
  if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
    return hn::Or(hn::Min(a, b), hn::Min(b, a));
  } else {
    return hn::Min(a, b);
  }
}

// For the maximum neither "or" nor "and" gives both: it is the negated minimum of the negated
// operands.
template <class D, class V>
HWY_INLINE V combine(Max, D d, V a, V b) {
  if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
    const V sign = hn::SignBit(d);
    const V a_negated = hn::Xor(a, sign), b_negated = hn::Xor(b, sign);
    return hn::Xor(hn::Or(hn::Min(a_negated, b_negated), hn::Min(b_negated, a_negated)), sign);
  } else {
    return hn::Max(a, b);
  }
}

template <class D, class V>
HWY_INLINE V combine(BitAnd, D, V a, V b) {
  return hn::And(a, b);
}

template <class D, class V>
HWY_INLINE V combine(BitOr, D, V a, V b) {
  return hn::Or(a, b);
}

template <class D, class V>
HWY_INLINE V combine(BitXor, D, V a, V b) {
  return hn::Xor(a, b);
}

/// Stores around the caches. TSan does not see such stores.
template <class D, class V, class T>
HWY_INLINE void stream_vector(V v, D d, T* to) {
#ifdef __SANITIZE_THREAD__
  hn::StoreU(v, d, to);
#else
  hn::Stream(v, d, to);
#endif
}

/// kBytes of stored elements: a vector of them, in the type they are folded in.
template <class E, size_t kVectorBytes>
struct Lanes {
  using T = typename E::Stored;
  using D = hn::CappedTag<T, kVectorBytes / sizeof(T)>;
  using V = hn::Vec<D>;
  static constexpr size_t kBytes = kVectorBytes;
  static constexpr int kUnroll = 4;

  static HWY_INLINE V load(const std::byte* from) {
    return hn::LoadU(D(), reinterpret_cast<const T*>(from));
  }
  static HWY_INLINE void store(V v, std::byte* to) { hn::StoreU(v, D(), reinterpret_cast<T*>(to)); }
  static HWY_INLINE void stream(V v, std::byte* to) {
    stream_vector(v, D(), reinterpret_cast<T*>(to));
  }
  template <class Op>
  static HWY_INLINE V apply(V a, V b) {
    return combine(Op(), D(), a, b);
  }
  static HWY_INLINE V divide(V v, uint32_t divisor) {
    return hn::Div(v, hn::Set(D(), static_cast<T>(divisor)));
  }
  static HWY_INLINE V scale(V v, double factor) {
    return combine(Prod(), D(), v, hn::Set(D(), factor_as<T>(factor)));
  }
};

/// Every true becomes 1, so that bitwise operators are the logical ones.
template <size_t kVectorBytes>
struct Lanes<Bool, kVectorBytes> : Lanes<Native<uint8_t>, kVectorBytes> {
  using Base = Lanes<Native<uint8_t>, kVectorBytes>;
  static HWY_INLINE typename Base::V load(const std::byte* from) {
    return hn::Min(Base::load(from), hn::Set(typename Base::D(), 1));
  }
};

/// E::widen for patterns in the low bits of 32: fp16 and fp8.
template <class E, class D, class V32>
HWY_INLINE hn::Vec<D> widen(D d, V32 bits) {
  constexpr int kWidth = 8 * sizeof(typename E::Stored), kDropped = 23 - E::kFractionBits;
  constexpr uint32_t kRebias = (127u - E::kBias) << 23, kLeastNormal = (128u - E::kBias) << 23;
  constexpr uint32_t kGreatest = (1u << (kWidth - 1)) - 1;  // pattern without its sign
  const hn::RebindToUnsigned<D> du;
  const auto magnitude = hn::And(bits, hn::Set(du, kGreatest));
  const auto sign = hn::ShiftLeft<32 - kWidth>(hn::Xor(bits, magnitude));
  const auto shifted = hn::ShiftLeft<kDropped>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(du, kRebias));
  // A denormal: as the fraction of the least normal, less the least normal. Exact.
  const auto least = hn::Set(du, kLeastNormal);
  const auto denormal =
      hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Or(shifted, least)), hn::BitCast(d, least)));
  // Magnitudes are positive, so they are compared as signed, which every instruction set can do.
  const hn::RebindToSigned<D> di;
  const auto at_least = [&](uint32_t bound) HWY_ATTR {
    return hn::RebindMask(
        du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(bound) - 1)));
  };
  auto result = hn::IfThenElse(at_least(1u << E::kFractionBits), normal, denormal);
  if constexpr (E::kHasInfinity) {
    constexpr uint32_t kInfinity = kGreatest >> E::kFractionBits << E::kFractionBits;
    const auto special = hn::Add(normal, hn::Set(du, kRebias));  // the exponent becomes 255
    const auto quiet = hn::Or(special, hn::Set(du, 0x00400000));
    result = hn::IfThenElse(at_least(kInfinity), special, result);
    result = hn::IfThenElse(at_least(kInfinity + 1), quiet, result);
  } else {
    result = hn::IfThenElse(at_least(kGreatest), hn::Set(du, 0x7fc00000), result);
  }
  return hn::BitCast(d, hn::Or(result, sign));
}

/// E::narrow, to patterns in the low bits of 32.
template <class E, class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> narrow(D d, hn::Vec<D> value) {
  constexpr int kWidth = 8 * sizeof(typename E::Stored), kDropped = 23 - E::kFractionBits;
  constexpr uint32_t kRebias = (127u - E::kBias) << 23, kLeastNormal = (128u - E::kBias) << 23;
  constexpr uint32_t kGreatest = (1u << (kWidth - 1)) - 1, kBelowHalf = (1u << (kDropped - 1)) - 1;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
  const auto sign = hn::ShiftRight<32 - kWidth>(hn::Xor(bits, magnitude));
  const auto odd = hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(du, 1));
  const auto rebias_and_round = hn::Set(du, kBelowHalf - kRebias);
  const auto normal = hn::ShiftRight<kDropped>(hn::Add(hn::Add(magnitude, rebias_and_round), odd));
  // Denormals: adding the power of two whose last bit is the least denormal leaves a multiple of
  // that, rounded to nearest even, in the low bits.
  const auto power = hn::Set(du, kLeastNormal + (static_cast<uint32_t>(kDropped) << 23));
  const auto denormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, power))), power);
  const hn::RebindToSigned<D> di;
  const auto at_least = [&](uint32_t bound) HWY_ATTR {
    return hn::RebindMask(
        du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(bound) - 1)));
  };
  auto result = hn::IfThenElse(at_least(kLeastNormal), normal, denormal);
  // Overflow begins half way between the last finite value and where the next would be.
  if constexpr (E::kHasInfinity) {
    constexpr uint32_t kInfinity = kGreatest >> E::kFractionBits << E::kFractionBits;
    constexpr uint32_t kOverflow = ((kInfinity << kDropped) + kRebias) - (1u << (kDropped - 1));
    constexpr uint32_t kQuiet = kInfinity | 1u << (E::kFractionBits - 1);
    const auto payload =
        hn::And(hn::ShiftRight<kDropped>(magnitude), hn::Set(du, kGreatest ^ kInfinity));
    result = hn::IfThenElse(at_least(kOverflow), hn::Set(du, kInfinity), result);
    result = hn::IfThenElse(at_least(0x7f800001), hn::Or(payload, hn::Set(du, kQuiet)), result);
  } else {  // that half way is a tie, to the even finite value
    constexpr uint32_t kOverflow = ((kGreatest << kDropped) + kRebias) - (1u << (kDropped - 1)) + 1;
    result = hn::IfThenElse(at_least(kOverflow), hn::Set(du, kGreatest), result);
  }
  return hn::Or(result, sign);
}

/// Common to the small floats: kParts vectors of fp32 for one stored vector, so that stores,
/// including streaming ones, are full vectors. E's Lanes define which elements are in which.
template <class E, size_t kVectorBytes>
struct WidenedLanes {
  using T = typename E::Stored;
  static constexpr int kParts = 4 / sizeof(T);
  using D = hn::CappedTag<float, kVectorBytes / 4>;
  using D32 = hn::RebindToUnsigned<D>;
  using DStored = hn::CappedTag<T, kVectorBytes / sizeof(T)>;
  struct V {
    hn::Vec<D> part[kParts];
  };
  static constexpr size_t kBytes = kVectorBytes;
  static constexpr int kUnroll = 4 / kParts;

  static HWY_INLINE void store(V v, std::byte* to) {
    hn::StoreU(Lanes<E, kVectorBytes>::rounded(v), DStored(), reinterpret_cast<T*>(to));
  }
  static HWY_INLINE void stream(V v, std::byte* to) {
    stream_vector(Lanes<E, kVectorBytes>::rounded(v), DStored(), reinterpret_cast<T*>(to));
  }
  template <class Op>
  static HWY_INLINE V apply(V a, V b) {
    for (int p = 0; p < kParts; ++p) a.part[p] = combine(Op(), D(), a.part[p], b.part[p]);
    return a;
  }
  static HWY_INLINE V divide(V v, uint32_t divisor) {
    const auto by = hn::Set(D(), static_cast<float>(divisor));
    for (int p = 0; p < kParts; ++p) v.part[p] = hn::Div(v.part[p], by);
    return v;
  }
  static HWY_INLINE V scale(V v, double factor) {
    const auto by = hn::Set(D(), factor_as<float>(factor));
    for (int p = 0; p < kParts; ++p) v.part[p] = hn::Mul(v.part[p], by);
    return v;
  }
};

/// Parts: the lower half of the elements, then the upper. From AVX2 on there are instructions that
/// equal float_from_half and half_from_float in every bit; Highway's emulation below AVX2
/// truncates.
template <size_t kVectorBytes>
struct Lanes<Half, kVectorBytes> : WidenedLanes<Half, kVectorBytes> {
  using Base = WidenedLanes<Half, kVectorBytes>;
  using typename Base::D;
  using typename Base::DStored;
  using typename Base::V;

  static HWY_INLINE V load(const std::byte* from) {
    const hn::CappedTag<uint16_t, kVectorBytes / 4> half_vector;
    const auto* stored = reinterpret_cast<const uint16_t*>(from);
    return {{widened(hn::LoadU(half_vector, stored)),
             widened(hn::LoadU(half_vector, stored + kVectorBytes / 4))}};
  }
  static HWY_INLINE hn::Vec<DStored> rounded(V v) {
    return hn::Combine(DStored(), narrowed(v.part[1]), narrowed(v.part[0]));
  }

  using D16 = hn::Rebind<uint16_t, D>;
#if HWY_ARCH_X86 && HWY_TARGET < HWY_SSE4 && !defined(HWY_DISABLE_F16C)
  static HWY_INLINE hn::Vec<D> widened(hn::Vec<D16> half) {
    return hn::PromoteTo(D(), hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
  }
  static HWY_INLINE hn::Vec<D16> narrowed(hn::Vec<D> value) {
    return hn::BitCast(D16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
  }
#else
  static HWY_INLINE hn::Vec<D> widened(hn::Vec<D16> half) {
    return widen<Half>(D(), hn::PromoteTo(typename Base::D32(), half));
  }
  static HWY_INLINE hn::Vec<D16> narrowed(hn::Vec<D> value) {
    return hn::DemoteTo(D16(), hn::BitCast(hn::RebindToSigned<D>(), narrow<Half>(D(), value)));
  }
#endif
};

/// Parts: the even elements, then the odd ones. A bfloat16 is the upper half of an fp32, so nothing
/// is shuffled. (On a little-endian machine, as all of Highway's are.)
template <size_t kVectorBytes>
struct Lanes<BFloat16, kVectorBytes> : WidenedLanes<BFloat16, kVectorBytes> {
  using Base = WidenedLanes<BFloat16, kVectorBytes>;
  using typename Base::D;
  using typename Base::D32;
  using typename Base::DStored;
  using typename Base::V;

  static HWY_INLINE V load(const std::byte* from) {
    const auto pairs =
        hn::BitCast(D32(), hn::LoadU(DStored(), reinterpret_cast<const uint16_t*>(from)));
    return {{hn::BitCast(D(), hn::ShiftLeft<16>(pairs)),
             hn::BitCast(D(), hn::And(pairs, hn::Set(D32(), 0xffff0000)))}};
  }
  // All elements at once, as 16-bit integers: a result is its fp32's upper half, plus one if the
  // lower half is more than 0x8000, or equals it and the upper half is odd. The average, (a + b +
  // 1) / 2 without overflow, has the carry of lower + 0x7fff + odd in its highest bit. NaNs need no
  // special case: those of widened bfloat16s, of results computed from them, and of factor_as()
  // have a zero lower half, so that nothing is added to their upper half.
  static HWY_INLINE hn::Vec<DStored> rounded(V v) {
    const DStored d16;
    const auto even = hn::BitCast(D32(), v.part[0]), odd = hn::BitCast(D32(), v.part[1]);
    const auto upper =
        hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, hn::ShiftRight<16>(even)));
    const auto lower =
        hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
    const auto below_tie = hn::Or(hn::And(upper, hn::Set(d16, 1)), hn::Set(d16, 0x7ffe));
    const auto carry = hn::ShiftRight<15>(hn::AverageRound(lower, below_tie));
    return hn::Add(upper, carry);
  }

  using D16 = hn::Rebind<uint16_t, D>;
  static HWY_INLINE hn::Vec<D> widened(hn::Vec<D16> bfloat16) {
    return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(D32(), bfloat16)));
  }
  /// Of any fp32, NaNs with any bits included.
  static HWY_INLINE hn::Vec<D16> narrowed(hn::Vec<D> value) {
    const D32 d32;
    const auto bits = hn::BitCast(d32, value);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(d32, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7fff)), odd));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
    const auto result = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(d32, 0x40)), rounded);
    return hn::DemoteTo(D16(), hn::BitCast(hn::RebindToSigned<D>(), result));
  }
};

/// Parts: the elements 0, 4, 8, ..., then 1, 5, 9, ..., and so on: nothing is shuffled.
template <class E, size_t kVectorBytes>
struct Float8Lanes : WidenedLanes<E, kVectorBytes> {
  using Base = WidenedLanes<E, kVectorBytes>;
  using typename Base::D;
  using typename Base::D32;
  using typename Base::DStored;
  using typename Base::V;

  static HWY_INLINE V load(const std::byte* from) {
    const auto fours =
        hn::BitCast(D32(), hn::LoadU(DStored(), reinterpret_cast<const uint8_t*>(from)));
    const auto byte = hn::Set(D32(), 0xff);
    return {{widen<E>(D(), hn::And(fours, byte)),
             widen<E>(D(), hn::And(hn::ShiftRight<8>(fours), byte)),
             widen<E>(D(), hn::And(hn::ShiftRight<16>(fours), byte)),
             widen<E>(D(), hn::ShiftRight<24>(fours))}};
  }
  static HWY_INLINE hn::Vec<DStored> rounded(V v) {
    const auto low = hn::Or(narrow<E>(D(), v.part[0]), hn::ShiftLeft<8>(narrow<E>(D(), v.part[1])));
    const auto high =
        hn::Or(narrow<E>(D(), v.part[2]), hn::ShiftLeft<8>(narrow<E>(D(), v.part[3])));
    return hn::BitCast(DStored(), hn::Or(low, hn::ShiftLeft<16>(high)));
  }
};

template <size_t kVectorBytes>
struct Lanes<E4M3, kVectorBytes> : Float8Lanes<E4M3, kVectorBytes> {};
template <size_t kVectorBytes>
struct Lanes<E5M2, kVectorBytes> : Float8Lanes<E5M2, kVectorBytes> {};

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#endif
