// Vectors of elements, for the instruction set that foreach_target.h is compiling for: load,
// convert, operate, store. The vector counterpart of element.hpp, equal to it bit for bit. Included
// once per instruction set, by move-inl.hpp only; everything lives in HWY_NAMESPACE, so that no
// instruction set's code can be linked in place of another's.
#if defined(RONDO_KERNELS_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef RONDO_KERNELS_LANES_INL
#undef RONDO_KERNELS_LANES_INL
#else
#define RONDO_KERNELS_LANES_INL
#endif

#include "hwy/highway.h"
#include "kernels/host/element.hpp"

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
  } else if constexpr (std::is_same_v<T, int64_t>) {  // nor a 64-bit one: from 32 x 32 -> 64
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

// x86's minimum returns its second operand when the two are zeros or one is NaN. Doing it both ways
// and joining the bits gives -0 if either is, and all exponent bits set, so a NaN, if either is
// NaN.
template <class D, class V>
HWY_INLINE V combine(Min, D, V a, V b) {
  if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
    return hn::Or(hn::Min(a, b), hn::Min(b, a));
  } else {
    return hn::Min(a, b);
  }
}

// For the maximum neither "or" nor "and" would do both: the minimum of the negated.
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
    hn::Stream(v, D(), reinterpret_cast<T*>(to));
  }
  template <class Op>
  static HWY_INLINE V apply(V a, V b) {
    return combine(Op(), D(), a, b);
  }
  static HWY_INLINE V divide(V v, uint32_t divisor) {
    return hn::Div(v, hn::Set(D(), static_cast<T>(divisor)));
  }
};

// Instructions for fp16 that equal float_from_half and half_from_float in every bit come with AVX2;
// what Highway offers below that truncates.
#if HWY_ARCH_X86 && HWY_TARGET < HWY_SSE4 && !defined(HWY_DISABLE_F16C)
template <class D, class V16>
HWY_INLINE hn::Vec<D> widen(D d, V16 half) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
}

template <class D, class V>
HWY_INLINE auto narrow(D, V value) {
  const auto half = hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value);
  return hn::BitCast(hn::Rebind<uint16_t, D>(), half);
}
#else
template <class D, class V16>
HWY_INLINE hn::Vec<D> widen(D d, V16 half) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, half);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fff));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto rebias = hn::Set(du, 112u << 23);
  const auto normal = hn::Add(shifted, rebias);
  const auto special = hn::Add(normal, rebias);  // exponent 31 becomes 255
  const auto quiet = hn::Or(special, hn::Set(du, 0x00400000));
  // A denormal m * 2^-24: as the fraction of 2^-14, less 2^-14. Exact.
  const auto one = hn::Set(du, 113u << 23);
  const auto denormal =
      hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Or(shifted, one)), hn::BitCast(d, one)));
  const hn::RebindToSigned<D>
      di;  // magnitudes are positive: compared as signed, which every set can
  const auto at_least = [&](uint32_t bound) HWY_ATTR {
    return hn::RebindMask(
        du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(bound) - 1)));
  };
  auto result = hn::IfThenElse(at_least(0x0400), normal, denormal);
  result = hn::IfThenElse(at_least(0x7c00), special, result);
  result = hn::IfThenElse(at_least(0x7c01), quiet, result);
  return hn::BitCast(d, hn::Or(result, sign));
}

template <class D, class V>
HWY_INLINE auto narrow(D d, V value) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffff));
  const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const auto rebias_and_round = hn::Set(du, 0xfffu - (112u << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, rebias_and_round), odd));
  // Denormals: adding 1/2 leaves a multiple of 2^-24, rounded to nearest even, in the low bits.
  const auto half_one = hn::Set(d, 0.5f);
  const auto denormal = hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), half_one)),
                                hn::BitCast(du, half_one));
  const auto nan =
      hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ff)), hn::Set(du, 0x7e00));
  const auto at_least = [&](uint32_t bound) HWY_ATTR {
    return hn::RebindMask(
        du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(bound) - 1)));
  };
  auto result = hn::IfThenElse(at_least(0x38800000), normal, denormal);
  result = hn::IfThenElse(at_least(0x477ff000), hn::Set(du, 0x7c00), result);
  result = hn::IfThenElse(at_least(0x7f800001), nan, result);
  return hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::BitCast(di, hn::Or(result, sign)));
}
#endif

/// What both 16-bit floats share: two vectors of fp32, first and second, for one vector as stored,
/// so that stores, streaming ones too, are full vectors. E's Lanes say which elements are in which.
template <class E, size_t kVectorBytes>
struct WidenedLanes {
  using D = hn::CappedTag<float, kVectorBytes / 4>;
  using D16 = hn::CappedTag<uint16_t, kVectorBytes / 2>;
  struct V {
    hn::Vec<D> first, second;
  };
  static constexpr size_t kBytes = kVectorBytes;
  static constexpr int kUnroll = 2;

  static HWY_INLINE void store(V v, std::byte* to) {
    hn::StoreU(Lanes<E, kVectorBytes>::rounded(v), D16(), reinterpret_cast<uint16_t*>(to));
  }
  static HWY_INLINE void stream(V v, std::byte* to) {
    hn::Stream(Lanes<E, kVectorBytes>::rounded(v), D16(), reinterpret_cast<uint16_t*>(to));
  }
  template <class Op>
  static HWY_INLINE V apply(V a, V b) {
    return {combine(Op(), D(), a.first, b.first), combine(Op(), D(), a.second, b.second)};
  }
  static HWY_INLINE V divide(V v, uint32_t divisor) {
    const auto by = hn::Set(D(), static_cast<float>(divisor));
    return {hn::Div(v.first, by), hn::Div(v.second, by)};
  }
};

/// First: the lower half of the elements; second: the upper.
template <size_t kVectorBytes>
struct Lanes<Half, kVectorBytes> : WidenedLanes<Half, kVectorBytes> {
  using Base = WidenedLanes<Half, kVectorBytes>;
  using typename Base::D;
  using typename Base::D16;
  using typename Base::V;

  static HWY_INLINE V load(const std::byte* from) {
    const hn::CappedTag<uint16_t, kVectorBytes / 4> half_vector;
    const auto* stored = reinterpret_cast<const uint16_t*>(from);
    return {widen(D(), hn::LoadU(half_vector, stored)),
            widen(D(), hn::LoadU(half_vector, stored + kVectorBytes / 4))};
  }
  static HWY_INLINE hn::Vec<D16> rounded(V v) {
    return hn::Combine(D16(), narrow(D(), v.second), narrow(D(), v.first));
  }
};

/// First: the even elements; second: the odd ones. A bfloat16 is the upper half of an fp32, so
/// nothing needs to be shuffled. (A little-endian machine, as all of Highway's are.)
template <size_t kVectorBytes>
struct Lanes<BFloat16, kVectorBytes> : WidenedLanes<BFloat16, kVectorBytes> {
  using Base = WidenedLanes<BFloat16, kVectorBytes>;
  using typename Base::D;
  using typename Base::D16;
  using typename Base::V;
  using D32 = hn::RebindToUnsigned<D>;

  static HWY_INLINE V load(const std::byte* from) {
    const auto pairs =
        hn::BitCast(D32(), hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(from)));
    return {hn::BitCast(D(), hn::ShiftLeft<16>(pairs)),
            hn::BitCast(D(), hn::And(pairs, hn::Set(D32(), 0xffff0000)))};
  }
  // The result is in the upper halves.
  static HWY_INLINE hn::Vec<D32> rounded_upper(hn::Vec<D> value) {
    const auto bits = hn::BitCast(D32(), value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(D32(), 1));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(D32(), 0x7fff)), odd);
    const auto quiet = hn::Or(bits, hn::Set(D32(), 0x00400000));
    return hn::IfThenElse(hn::RebindMask(D32(), hn::IsNaN(value)), quiet, rounded);
  }
  static HWY_INLINE hn::Vec<D16> rounded(V v) {
    const auto even = hn::ShiftRight<16>(rounded_upper(v.first));
    const auto odd = hn::And(rounded_upper(v.second), hn::Set(D32(), 0xffff0000));
    return hn::BitCast(D16(), hn::Or(even, odd));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace rondo::kernels
HWY_AFTER_NAMESPACE();

#endif
