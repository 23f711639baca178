// The identity of every operator changes nothing, of every type, on either side of a fold.
#include "kernels/identity.hpp"

#include <cstring>

#include "tests/harness/catch.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels::test {
namespace {

/// One element of each, folded.
std::vector<std::byte> fold(DataType type, ReduceOp op, std::vector<const std::byte*> sources) {
  std::vector<std::byte> result(size_of(type));
  std::byte* const to = result.data();
  scalar_move_function(type, op)({.sources = sources.data(),
                                  .destinations = &to,
                                  .source_count = static_cast<uint32_t>(sources.size()),
                                  .destination_count = 1,
                                  .count = 1,
                                  .divisor = 1,
                                  .nontemporal = 0});
  return result;
}

bool is_zero(DataType type, const std::byte* at) {
  std::vector<std::byte> bits(at, at + size_of(type));
  bits.back() &= std::byte{0x7f};
  return std::all_of(bits.begin(), bits.end(), [](std::byte b) { return b == std::byte{0}; });
}

/// Of sums: -0 becomes +0, as 0 + -0 does. Of bools: every true value becomes 1.
bool same(DataType type, const std::byte* given, const std::byte* got) {
  if (type == DataType::kBool) return (*given != std::byte{0}) == (*got == std::byte{1});
  if (is_floating(type) && is_zero(type, given) && is_zero(type, got)) return true;
  if (is_floating(type) && is_nan(type, given)) return is_nan(type, got);
  return std::memcmp(given, got, size_of(type)) == 0;
}

}  // namespace

TEST_CASE("an operator's identity changes no value") {
  for (int t = 0; t < kDataTypes; ++t) {
    for (int o = 0; o < kReduceOps; ++o) {
      const auto type = static_cast<DataType>(t);
      const auto op = static_cast<ReduceOp>(o);
      if (!supports(type, op)) {
        CHECK(identity_bits(type, op) == 0);
        continue;
      }
      const uint64_t bits = identity_bits(type, op);
      const auto* const identity = reinterpret_cast<const std::byte*>(&bits);
      const std::vector<std::byte>& values = pool(type);
      int wrong = 0;
      for (size_t i = 0; i < 3000; ++i) {
        const std::byte* const value = values.data() + i * size_of(type);
        wrong += same(type, value, fold(type, op, {identity, value}).data()) ? 0 : 1;
        wrong += same(type, value, fold(type, op, {value, identity}).data()) ? 0 : 1;
      }
      INFO(name(op) << " of " << name(type));
      CHECK(wrong == 0);
    }
  }
}

}  // namespace rondo::kernels::test
