// Chooses the loop for a type and an operator. There are fewer loops than pairs, because some pairs
// share one. For one thread among many, the counterpart of move_function() in reduce.hpp.
#pragma once

#include "kernels/cuda/move.hpp"

namespace rondo::kernels::cuda {

template <class E>
RONDO_DEVICE void float_move(ReduceOp op, const Move& move, const Share& share) {
  switch (op) {
    case ReduceOp::kProd:
      return fold<E, Prod>(move, share);
    case ReduceOp::kMin:
      return fold<E, Min>(move, share);
    case ReduceOp::kMax:
      return fold<E, Max>(move, share);
    default:
      if (move.factors != nullptr || move.divisor > 1) return fold<E, ScaledSum>(move, share);
      return fold<E, Sum>(move, share);
  }
}

RONDO_DEVICE inline void bit_move(ReduceOp op, size_t element_bytes, const Move& move,
                                  const Share& share) {
  Move bytes = move;
  bytes.count *= element_bytes;
  switch (op) {
    case ReduceOp::kBand:
      return fold<Native<uint8_t>, BitAnd>(bytes, share);
    case ReduceOp::kBor:
      return fold<Native<uint8_t>, BitOr>(bytes, share);
    default:
      return fold<Native<uint8_t>, BitXor>(bytes, share);
  }
}

template <std::integral T>
RONDO_DEVICE void integer_move(ReduceOp op, const Move& move, const Share& share) {
  // Sums and products of signed integers use the unsigned code; order and division do not. Sums of
  // averages need a wider type.
  using Unsigned = Native<std::make_unsigned_t<T>>;
  switch (op) {
    case ReduceOp::kProd:
      return fold<Unsigned, Prod>(move, share);
    case ReduceOp::kMin:
      return fold<Native<T>, Min>(move, share);
    case ReduceOp::kMax:
      return fold<Native<T>, Max>(move, share);
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return bit_move(op, sizeof(T), move, share);
    case ReduceOp::kAvg:
      if (move.divisor > 1) return fold<Averaged<T>, Avg>(move, share);
      return fold<Unsigned, Sum>(move, share);
    default:
      if (move.factors != nullptr || move.divisor > 1)
        return fold<Native<T>, ScaledSum>(move, share);
      return fold<Unsigned, Sum>(move, share);
  }
}

/// On bools all operators are logical.
RONDO_DEVICE inline void bool_move(ReduceOp op, const Move& move, const Share& share) {
  if (move.factors != nullptr) return fold<Bool, ScaledSum>(move, share);
  switch (op) {
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return fold<Bool, Prod>(move, share);
    case ReduceOp::kBxor:
      return fold<Bool, BitXor>(move, share);
    default:
      return fold<Bool, Sum>(move, share);
  }
}

/// The floats below 32 bits, converted by element.hpp.
struct HostFloats {
  using Fp16 = Half;
  using Bf16 = BFloat16;
  using Fp8E4M3 = E4M3;
  using Fp8E5M2 = E5M2;
};

/// This thread's share of a move, as reduce.hpp defines moves: all threads together do what the
/// scalar reference does. Ignores `nontemporal`. REQUIRES: supports(type, op); on a GPU destinations
/// in its memory or in mapped memory of the host, not in a block's. Floats: HostFloats, or a type with
/// the same bits.
template <class Floats = HostFloats>
RONDO_DEVICE void move_share(DataType type, ReduceOp op, const Move& move, const Share& share) {
  if (move.source_count == 1 && move.divisor <= 1 && move.factors == nullptr) {
    return copy(move, size_of(type), share);
  }
  switch (type) {
    case DataType::kFloat32:
      return float_move<Native<float>>(op, move, share);
    case DataType::kFloat64:
      return float_move<Native<double>>(op, move, share);
    case DataType::kFloat16:
      return float_move<typename Floats::Fp16>(op, move, share);
    case DataType::kBFloat16:
      return float_move<typename Floats::Bf16>(op, move, share);
    case DataType::kFloat8E4M3:
      return float_move<typename Floats::Fp8E4M3>(op, move, share);
    case DataType::kFloat8E5M2:
      return float_move<typename Floats::Fp8E5M2>(op, move, share);
    case DataType::kInt8:
      return integer_move<int8_t>(op, move, share);
    case DataType::kInt16:
      return integer_move<int16_t>(op, move, share);
    case DataType::kInt32:
      return integer_move<int32_t>(op, move, share);
    case DataType::kInt64:
      return integer_move<int64_t>(op, move, share);
    case DataType::kUint8:
      return integer_move<uint8_t>(op, move, share);
    case DataType::kUint16:
      return integer_move<uint16_t>(op, move, share);
    case DataType::kUint32:
      return integer_move<uint32_t>(op, move, share);
    case DataType::kUint64:
      return integer_move<uint64_t>(op, move, share);
    case DataType::kBool:
      return bool_move(op, move, share);
  }
}

}  // namespace rondo::kernels::cuda
