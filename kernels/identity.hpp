// The identity of an operator: the value that changes nothing in a fold. Knows no kernels.
#pragma once

#include <cstdint>
#include <limits>

#include "rondo/types.hpp"

namespace rondo::kernels {

namespace identity_of {

/// The bits of 1, of the largest value that a minimum meets, and of the lowest that a maximum meets:
/// infinities where the type has them.
struct FloatBits {
  uint64_t one, high, low;
};
constexpr FloatBits float_bits(DataType type) {
  switch (type) {
    case DataType::kFloat64:
      return {0x3FF0000000000000u, 0x7FF0000000000000u, 0xFFF0000000000000u};
    case DataType::kFloat16:
      return {0x3C00, 0x7C00, 0xFC00};
    case DataType::kBFloat16:
      return {0x3F80, 0x7F80, 0xFF80};
    case DataType::kFloat8E4M3:
      return {0x38, 0x7E, 0xFE};  // 448: there is no infinity
    case DataType::kFloat8E5M2:
      return {0x3C, 0x7C, 0xFC};
    default:  // kFloat32
      return {0x3F800000u, 0x7F800000u, 0xFF800000u};
  }
}

constexpr bool is_signed(DataType type) {
  return type == DataType::kInt8 || type == DataType::kInt16 || type == DataType::kInt32 ||
         type == DataType::kInt64;
}

/// The lowest and the highest integer of the type; a bool's are false and true.
constexpr uint64_t lowest(DataType type) {
  return is_signed(type) ? uint64_t{1} << (8 * size_of(type) - 1) : 0;
}
constexpr uint64_t highest(DataType type) {
  if (type == DataType::kBool) return 1;
  const uint64_t ones = std::numeric_limits<uint64_t>::max() >> (64 - 8 * size_of(type));
  return is_signed(type) ? ones >> 1 : ones;
}

}  // namespace identity_of

/// Its bits, in the first size_of(type) bytes: 0 of sums (+0 in floats), 1 of a product, infinity
/// of a minimum, -infinity of a maximum (the largest and the lowest value in types without), ones of
/// a bitwise and. 0 for values outside the enumerations.
constexpr uint64_t identity_bits(DataType type, ReduceOp op) {
  if (!supports(type, op)) return 0;
  const bool floating = is_floating(type);
  switch (op) {
    case ReduceOp::kProd:
      return floating ? identity_of::float_bits(type).one : 1;
    case ReduceOp::kMin:
      return floating ? identity_of::float_bits(type).high : identity_of::highest(type);
    case ReduceOp::kMax:
      return floating ? identity_of::float_bits(type).low : identity_of::lowest(type);
    case ReduceOp::kBand:
      return type == DataType::kBool ? 1 : std::numeric_limits<uint64_t>::max();
    default:
      return 0;
  }
}

}  // namespace rondo::kernels
