// The identity of every operator changes nothing, of every type, on either side of a fold.
#include "kernels/identity.hpp"

#include <cstring>

#include "tests/harness/catch.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels::test {
namespace {

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
  for_each_type_and_op([](DataType type, ReduceOp op) {
    const uint64_t bits = identity_bits(type, op);
    if (!supports(type, op)) {
      CHECK(bits == 0);
      return;
    }
    const auto* const identity = reinterpret_cast<const std::byte*>(&bits);
    int wrong = 0;
    for (size_t i = 0; i < 3000; ++i) {
      const std::byte* const value = pool(type).data() + i * size_of(type);
      for (const auto& sources : {std::vector{identity, value}, std::vector{value, identity}}) {
        std::vector<std::byte> result(size_of(type));
        fold_into(result.data(), sources, scalar_move_function(type, op));
        wrong += !same(type, value, result.data());
      }
    }
    INFO(name(op) << " of " << name(type));
    CHECK(wrong == 0);
  });
}

}  // namespace rondo::kernels::test
