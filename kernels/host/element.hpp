// What one element means: how it is stored, in which type it is folded, and what each operator does
// to two of them. Both the scalar reference and the tails of the vector kernels are built from
// this; no loops and no vectors here.
#pragma once

#include <array>
#include <cmath>
#include <concepts>
#include <cstring>
#include <type_traits>

#include "kernels/half.hpp"
#include "kernels/reduce.hpp"

namespace rondo::kernels {

/// Types that are folded as they are stored.
template <class T>
struct Native {
  using Stored = T;
  using Folded = T;
  static Folded widen(Stored value) { return value; }
  static Stored narrow(Folded value) { return value; }
};

struct Half {
  using Stored = uint16_t;
  using Folded = float;
  static Folded widen(Stored value) { return float_from_half(value); }
  static Stored narrow(Folded value) { return half_from_float(value); }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Folded = float;
  static Folded widen(Stored value) { return float_from_bfloat16(value); }
  static Stored narrow(Folded value) { return bfloat16_from_float(value); }
};

/// Integers wrap: unsigned arithmetic, where overflow is defined.
struct Sum {
  template <std::floating_point T>
  static T apply(T a, T b) {
    return a + b;
  }
  template <std::integral T>
  static T apply(T a, T b) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  }
};

struct Prod {
  template <std::floating_point T>
  static T apply(T a, T b) {
    return a * b;
  }
  template <std::integral T>
  static T apply(T a, T b) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(static_cast<U>(a) * static_cast<U>(b)));
  }
};

/// NaN if either is one; -0 < +0.
struct Min {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (a == b) return std::signbit(a) ? a : b;
      return a < b ? a : b;  // b, if that is the NaN
    } else {
      return a < b ? a : b;
    }
  }
};

struct Max {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      if (a != a) return a;
      if (a == b) return std::signbit(a) ? b : a;
      return a > b ? a : b;
    } else {
      return a > b ? a : b;
    }
  }
};

/// Truly, not by a reciprocal, which rounds twice. Integers truncate towards zero; int64_t holds
/// every divisor.
template <class T>
T divide(T value, uint32_t divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value / static_cast<T>(divisor);
  } else {
    return static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(divisor));
  }
}

/// One element from every source to every destination; offsets in bytes. Operands: Move, or
/// anything with its members.
template <class E, class Op, class Operands>
inline void fold_one(const Operands& operands, size_t source_at, size_t destination_at) {
  const auto load = [&](uint32_t source) {
    typename E::Stored stored;
    std::memcpy(&stored, operands.sources[source] + source_at, sizeof stored);
    return E::widen(stored);
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

/// Kernel<E, Op>::move for an element type and every operator, in ReduceOp's order. Average is a
/// sum with a divisor.
template <template <class, class> class Kernel, class E>
inline constexpr std::array<MoveFunction, kReduceOps> kByOperator = {
    &Kernel<E, Sum>::move, &Kernel<E, Prod>::move, &Kernel<E, Min>::move, &Kernel<E, Max>::move,
    &Kernel<E, Sum>::move};

/// Kernel<E, Op>::move for every type, in DataType's order, and every operator; null outside the
/// enumerations.
template <template <class, class> class Kernel>
MoveFunction select(DataType type, ReduceOp op) {
  static constexpr std::array<std::array<MoveFunction, kReduceOps>, kDataTypes> kTable = {
      kByOperator<Kernel, Native<float>>,
      kByOperator<Kernel, Native<double>>,
      kByOperator<Kernel, Half>,
      kByOperator<Kernel, BFloat16>,
      kByOperator<Kernel, Native<int32_t>>,
      kByOperator<Kernel, Native<int64_t>>,
      kByOperator<Kernel, Native<uint8_t>>};
  const auto row = static_cast<size_t>(type), column = static_cast<size_t>(op);
  return row < kTable.size() && column < kTable[0].size() ? kTable[row][column] : nullptr;
}

}  // namespace rondo::kernels
