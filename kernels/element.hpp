// What one element means: its storage, the type in which it is folded, and the effect of each
// operator on two of them. The scalar reference, the tails of the vector kernels and all device
// code are built from this; constexpr functions here are device code too. No vectors here.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
#include "kernels/reduce.hpp"

namespace rondo::kernels {

/// Types that are folded in their own representation.
template <class T>
struct Native {
  using Stored = T;
  using Folded = T;
  static constexpr Folded widen(Stored value) { return value; }
  static constexpr Stored narrow(Folded value) { return value; }
};

__extension__ using Int128 = __int128;

/// The type in which 2^16 integers of type T can be added without overflow.
template <std::integral T>
using WideInteger = std::conditional_t<
    sizeof(T) == 8, Int128,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>>;

/// An integer type for averages: the sum must not wrap before it is divided.
template <std::integral T>
struct Averaged {
  using Stored = T;
  using Folded = WideInteger<T>;
  static constexpr Folded widen(Stored value) { return static_cast<Folded>(value); }
  static constexpr Stored narrow(Folded value) { return static_cast<Stored>(value); }
};

/// The floating types that are folded in fp32, with their conversions.
struct Half {
  using Stored = uint16_t;
  using Folded = float;
  static constexpr int kFractionBits = 10, kBias = 15;
  static constexpr bool kHasInfinity = true;
  static constexpr Folded widen(Stored value) { return float_from_half(value); }
  static constexpr Stored narrow(Folded value) { return half_from_float(value); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Folded = float;
  static constexpr Folded widen(Stored value) { return float_from_bfloat16(value); }
  static constexpr Stored narrow(Folded value) { return bfloat16_from_float(value); }
};

struct E4M3 {
  using Stored = uint8_t;
  using Folded = float;
  static constexpr int kFractionBits = 3, kBias = 7;
  static constexpr bool kHasInfinity = false;
  static constexpr Folded widen(Stored value) { return float_from_e4m3(value); }
  static constexpr Stored narrow(Folded value) { return e4m3_from_float(value); }
};

struct E5M2 {
  using Stored = uint8_t;
  using Folded = float;
  static constexpr int kFractionBits = 2, kBias = 15;
  static constexpr bool kHasInfinity = true;
  static constexpr Folded widen(Stored value) { return float_from_e5m2(value); }
  static constexpr Stored narrow(Folded value) { return e5m2_from_float(value); }
};

/// A byte: any value but zero is true; stored as 0 or 1.
struct Bool {
  using Stored = uint8_t;
  using Folded = bool;
  static constexpr Folded widen(Stored value) { return value != 0; }
  static constexpr Stored narrow(Folded value) { return value ? 1 : 0; }
};

/// The type in which integers are added and multiplied so that they wrap: unsigned, and at least as
/// wide as int, since narrower types would be promoted to signed int, whose overflow is undefined.
template <std::integral T>
using Wrapping = std::common_type_t<unsigned, std::make_unsigned_t<T>>;

struct Sum {
  static constexpr bool apply(bool a, bool b) { return a || b; }
  template <std::floating_point T>
  static constexpr T apply(T a, T b) {
    return a + b;
  }
  template <std::integral T>
  static constexpr T apply(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
  static constexpr Int128 apply(Int128 a, Int128 b) { return a + b; }
};

/// A sum whose sources are first multiplied by Move's factors.
struct ScaledSum : Sum {};

/// A sum that is divided at the end. Separate from Sum because integers are summed in a wider type.
struct Avg : Sum {};

struct Prod {
  static constexpr bool apply(bool a, bool b) { return a && b; }
  template <std::floating_point T>
  static constexpr T apply(T a, T b) {
    return a * b;
  }
  template <std::integral T>
  static constexpr T apply(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};

/// std::signbit is not device code.
template <std::floating_point T>
constexpr bool is_negative(T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  return std::bit_cast<Bits>(value) < 0;
}

/// NaN if either is one; -0 < +0.
struct Min {
  template <class T>
  static constexpr T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (a == b) return is_negative(a) ? a : b;
      return a < b ? a : b;  // b, if b is the NaN
    } else {
      return a < b ? a : b;
    }
  }
};

struct Max {
  template <class T>
  static constexpr T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (a == b) return is_negative(a) ? b : a;
      return a > b ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};

struct BitAnd {
  template <std::integral T>
  static constexpr T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <std::integral T>
  static constexpr T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <std::integral T>
  static constexpr T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

/// Divides a sum of at most 2^16 integers of 64 bits in two steps, by digits of 32 bits, because a
/// division of 128 bits is slow. `divided` divides a uint64_t by `divisor`. Truncates towards zero.
template <class Divided>
constexpr Int128 divide_digits(Int128 value, uint32_t divisor, const Divided& divided) {
  const bool negative = value < 0;
  const Int128 magnitude = negative ? -value : value;
  const auto high = static_cast<uint64_t>(magnitude >> 32);
  const uint64_t quotient = divided(high);
  const uint64_t low = (high - quotient * divisor) << 32 | static_cast<uint32_t>(magnitude);
  const Int128 whole = (static_cast<Int128>(quotient) << 32) + static_cast<Int128>(divided(low));
  return negative ? -whole : whole;
}

/// Divides, because multiplying by a reciprocal rounds twice. Integers truncate towards zero; 64
/// bits hold every divisor.
template <class T>
constexpr T divide(T value, uint32_t divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value / static_cast<T>(divisor);
  } else if constexpr (std::is_same_v<T, Int128>) {
    return divide_digits(value, divisor, [divisor](uint64_t digits) { return digits / divisor; });
  } else if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(value) / divisor);
  } else {
    return static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(divisor));
  }
}

/// A factor without its fraction, modulo 2^64.
constexpr uint64_t integer_factor(double factor) {
  if (factor >= -0x1p63 && factor < 0x1p63) {
    return static_cast<uint64_t>(static_cast<int64_t>(factor));
  }
  return factor > 0 && factor < 0x1p64 ? static_cast<uint64_t>(factor) : 0;  // a NaN: 0
}

/// A factor as Move defines it, in the type that it multiplies. A NaN becomes the default NaN,
/// whose low bits are zero (lanes-inl.hpp, BFloat16). Signed and unsigned integers of one width get
/// equal bits.
template <class T>
constexpr T factor_as(double factor) {
  if constexpr (std::is_same_v<T, bool>) {
    return factor != 0;
  } else if constexpr (std::is_floating_point_v<T>) {
    return factor == factor ? static_cast<T>(factor) : std::numeric_limits<T>::quiet_NaN();
  } else {
    return static_cast<T>(integer_factor(factor));
  }
}

/// Moves one element from every source to every destination; offsets in bytes. Operands: Move, or a
/// type with its members.
template <class E, class Op, class Operands>
inline void fold_one(const Operands& operands, size_t source_at, size_t destination_at) {
  const auto load = [&](uint32_t source) {
    typename E::Stored stored;
    std::memcpy(&stored, operands.sources[source] + source_at, sizeof stored);
    auto folded = E::widen(stored);
    if constexpr (std::is_same_v<Op, ScaledSum>) {
      folded = Prod::apply(folded, factor_as<typename E::Folded>(operands.factors[source]));
    }
    return folded;
  };
  typename E::Folded folded = load(0);
  for (uint32_t source = 1; source < operands.source_count; ++source) {
    folded = Op::apply(folded, load(source));
  }
  if (operands.divisor > 1) folded = divide(folded, operands.divisor);
  const typename E::Stored stored = E::narrow(folded);
  for (uint32_t j = 0; j < operands.destination_count; ++j) {
    std::memcpy(operands.destinations[j] + destination_at, &stored, sizeof stored);
  }
}

/// Executes a move, one element after the other.
template <class E, class Op>
inline void fold_elements(const Move& move) {
  constexpr size_t kSize = sizeof(typename E::Stored);
  for (size_t i = 0; i < move.count; ++i) fold_one<E, Op>(move, i * kSize, i * kSize);
}

/// The element type of a DataType.
template <DataType>
struct ElementOf;
template <>
struct ElementOf<DataType::kFloat32> : std::type_identity<Native<float>> {};
template <>
struct ElementOf<DataType::kFloat64> : std::type_identity<Native<double>> {};
template <>
struct ElementOf<DataType::kFloat16> : std::type_identity<Half> {};
template <>
struct ElementOf<DataType::kBFloat16> : std::type_identity<BFloat16> {};
template <>
struct ElementOf<DataType::kInt32> : std::type_identity<Native<int32_t>> {};
template <>
struct ElementOf<DataType::kInt64> : std::type_identity<Native<int64_t>> {};
template <>
struct ElementOf<DataType::kUint8> : std::type_identity<Native<uint8_t>> {};
template <>
struct ElementOf<DataType::kInt8> : std::type_identity<Native<int8_t>> {};
template <>
struct ElementOf<DataType::kInt16> : std::type_identity<Native<int16_t>> {};
template <>
struct ElementOf<DataType::kUint16> : std::type_identity<Native<uint16_t>> {};
template <>
struct ElementOf<DataType::kUint32> : std::type_identity<Native<uint32_t>> {};
template <>
struct ElementOf<DataType::kUint64> : std::type_identity<Native<uint64_t>> {};
template <>
struct ElementOf<DataType::kBool> : std::type_identity<Bool> {};
template <>
struct ElementOf<DataType::kFloat8E4M3> : std::type_identity<E4M3> {};
template <>
struct ElementOf<DataType::kFloat8E5M2> : std::type_identity<E5M2> {};

/// The element type with which an operator runs.
template <DataType kType, class Op, class E = typename ElementOf<kType>::type>
struct OperandOf : std::type_identity<E> {};
template <DataType kType, std::integral T>
struct OperandOf<kType, Avg, Native<T>> : std::type_identity<Averaged<T>> {};

/// Kernel<E, Op>::move; null, and not instantiated, if the type lacks the operator.
template <template <class, class> class Kernel, DataType kType, ReduceOp kOp, class Op>
constexpr MoveFunction entry() {
  if constexpr (supports(kType, kOp)) {
    return &Kernel<typename OperandOf<kType, Op>::type, Op>::move;
  } else {
    return nullptr;
  }
}

/// Kernel<E, Op>::move for one type and every operator, in ReduceOp's order.
template <template <class, class> class Kernel, DataType kType>
inline constexpr std::array<MoveFunction, kReduceOps> kByOperator = {
    entry<Kernel, kType, ReduceOp::kSum, Sum>(),   entry<Kernel, kType, ReduceOp::kProd, Prod>(),
    entry<Kernel, kType, ReduceOp::kMin, Min>(),   entry<Kernel, kType, ReduceOp::kMax, Max>(),
    entry<Kernel, kType, ReduceOp::kAvg, Avg>(),   entry<Kernel, kType, ReduceOp::kBand, BitAnd>(),
    entry<Kernel, kType, ReduceOp::kBor, BitOr>(), entry<Kernel, kType, ReduceOp::kBxor, BitXor>(),
    entry<Kernel, kType, ReduceOp::kMulSum, Sum>()};  // the factors are in the Move

/// Kernel<E, Op>::move for one of the types listed; null for any other, and where supports() is
/// false.
template <template <class, class> class Kernel, DataType... kTypes>
MoveFunction select(DataType type, ReduceOp op) {
  static constexpr std::array kListed = {kTypes...};
  static constexpr std::array kTable = {kByOperator<Kernel, kTypes>...};
  const auto column = static_cast<size_t>(op);
  if (column >= kReduceOps) return nullptr;
  for (size_t row = 0; row < kListed.size(); ++row) {
    if (kListed[row] == type) return kTable[row][column];
  }
  return nullptr;
}

}  // namespace rondo::kernels
