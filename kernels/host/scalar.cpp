// The scalar reference: the definition of correct. One element after the other, on any machine;
// never made faster.
#include "kernels/host/element.hpp"

namespace rondo::kernels {
namespace {

template <class E, class Op>
struct ScalarKernel {
  static void move(const Move& move) {
    constexpr size_t kSize = sizeof(typename E::Stored);
    if (move.source_count == 1 && move.divisor <= 1) return copy(move, move.count * kSize);
    for (size_t i = 0; i < move.count; ++i) fold_one<E, Op>(move, i * kSize, i * kSize);
  }

 private:
  // Bytes, so that a NaN arrives as it was.
  static void copy(const Move& move, size_t bytes) {
    if (bytes == 0) return;
    for (uint32_t j = 0; j < move.destination_count; ++j) {
      if (move.destinations[j] == move.sources[0]) continue;
      std::memcpy(move.destinations[j], move.sources[0], bytes);
    }
  }
};

}  // namespace

MoveFunction scalar_move_function(DataType type, ReduceOp op) {
  return select<ScalarKernel>(type, op);
}

}  // namespace rondo::kernels
