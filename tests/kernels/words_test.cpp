// Small floats that GPU threads convert by words, as the device's instructions do, equal the
// reference.
#include "tests/kernels/shares.hpp"

namespace rondo::kernels {

namespace cuda {
template void float_move<Native<float>>(ReduceOp, const Move&, const Share&);
template void float_move<Native<double>>(ReduceOp, const Move&, const Share&);
template void float_move<Half>(ReduceOp, const Move&, const Share&);
template void float_move<BFloat16>(ReduceOp, const Move&, const Share&);
template void float_move<E4M3>(ReduceOp, const Move&, const Share&);
template void float_move<E5M2>(ReduceOp, const Move&, const Share&);
}  // namespace cuda

namespace {

using namespace test;

template <class E>
struct InWords {
  using Stored = typename E::Stored;
  using Folded = float;
  static constexpr int kBits = 8 * sizeof(Stored);
  static void widen_word(uint32_t word, float* values) {
    for (int at = 0; at < 32; at += kBits) *values++ = E::widen(static_cast<Stored>(word >> at));
  }
  static uint32_t narrow_word(const float* values) {
    uint32_t word = 0;
    for (int at = 0; at < 32; at += kBits) word |= uint32_t{E::narrow(*values++)} << at;
    return word;
  }
};

template <class E>
void check_words(DataType type) {
  for_each_kernel([&](DataType kernel_type, ReduceOp op, const std::vector<std::byte>& values) {
    if (kernel_type != type) return;
    for (const size_t count : edge_counts(type)) {
      for (const Placement placement : kPlacements) {
        check_shares({type, op, 3, 2, 1, count, placement, 0}, values, 3,
                     [&](const Move& move, const cuda::Share& share) {
                       cuda::float_move<InWords<E>>(op, move, share);
                     });
      }
    }
  });
}

TEST_CASE("Values that are converted by words equal the reference") {
  check_words<Half>(DataType::kFloat16);
  check_words<BFloat16>(DataType::kBFloat16);
  check_words<E4M3>(DataType::kFloat8E4M3);
  check_words<E5M2>(DataType::kFloat8E5M2);
}

}  // namespace
}  // namespace rondo::kernels
