// The scalar reference: the definition of correct. One element after the other, on any machine;
// never optimised.
#include "kernels/convert.hpp"
#include "kernels/element.hpp"

namespace rondo::kernels {
namespace {

template <class E, class Op>
struct ScalarKernel {
  static void move(const Move& move) {
    if constexpr (std::is_same_v<Op, Sum>) {
      if (move.factors != nullptr) return fold_elements<E, ScaledSum>(move);
    }
    if (move.source_count == 1 && move.divisor <= 1) {
      copy(move, move.count * sizeof(typename E::Stored));
    } else {
      fold_elements<E, Op>(move);
    }
  }

 private:
  // Copies bytes, which preserves a NaN's bits.
  static void copy(const Move& move, size_t bytes) {
    if (bytes == 0) return;
    for (uint32_t j = 0; j < move.destination_count; ++j) {
      if (move.destinations[j] == move.sources[0]) continue;
      std::memcpy(move.destinations[j], move.sources[0], bytes);
    }
  }
};

template <class E>
void narrow_elements(const float* from, uint16_t* to, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) to[i] = E::narrow(from[i] * factor);
}

template <class E>
void widen_elements(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = E::widen(from[i]);
}

}  // namespace

Conversion scalar_conversion(DataType type) {
  if (type == DataType::kFloat16) return {narrow_elements<Half>, widen_elements<Half>};
  return {narrow_elements<BFloat16>, widen_elements<BFloat16>};
}

MoveFunction scalar_move_function(DataType type, ReduceOp op) {
  return select<ScalarKernel, DataType::kFloat32, DataType::kFloat64, DataType::kFloat16,
                DataType::kBFloat16, DataType::kInt32, DataType::kInt64, DataType::kUint8,
                DataType::kInt8, DataType::kInt16, DataType::kUint16, DataType::kUint32,
                DataType::kUint64, DataType::kBool, DataType::kFloat8E4M3, DataType::kFloat8E5M2>(
      type, op);
}

}  // namespace rondo::kernels
