// Every kernel of every instruction set that this CPU has equals the scalar reference in every bit,
// any NaN counting as equal to any other: types, operators, shapes, in place, counts, alignments,
// both kinds of store; and touches nothing else.
#include <bit>
#include <string>
#include <vector>

#include "kernels/host/targets.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels {
namespace {

using namespace test;

// Runs one case on every instruction set; the reference once.
void check(const Case& c, const std::vector<std::byte>& values) {
  Arena expected(c, values);
  expected.run(scalar_move_function(c.type, c.op));
  for (const char* set : instruction_sets().first(instruction_sets().size() - 1)) {
    Arena actual(c, values);
    actual.run(move_function_for(set, c.type, c.op));
    const ptrdiff_t at = actual.difference(expected);
    if (at >= 0) {
      FAIL(set << " " << describe(c) << ": differs at byte " << at << " of the arena");
    }
  }
  SUCCEED();  // counted
}

TEST_CASE("Vector kernels equal the reference in all shapes, in place on every source") {
  const std::vector<uint32_t> few{1, 2, 3, 9}, all{1, 2, 3, 4, 5, 6, 7, 8, 9};
  uint32_t turn = 0;
  for_each_shape(testing::kSanitized ? few : all,
                 [&](Case c, const std::vector<std::byte>& values) {
                   // The next test has all of them everywhere.
                   c.nontemporal = (turn + turn / std::size(kPlacements)) % (c.destinations + 1);
                   ++turn;
                   check(c, values);
                 });
}

TEST_CASE("Vector kernels equal the reference at every edge of count and alignment") {
  struct Shape {
    uint32_t sources, destinations;
    int in_place;
  };
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    for (const Shape& s :
         {Shape{1, 1, -1}, {1, 2, 0}, {2, 1, -1}, {2, 1, 1}, {2, 2, 0}, {3, 2, -1}}) {
      for (const size_t count : edge_counts(type)) {
        for (const Placement placement : kPlacements) {
          for (uint32_t nontemporal = 0; nontemporal <= s.destinations; ++nontemporal) {
            check({type, op, s.sources, s.destinations, s.in_place, count, placement, nontemporal},
                  values);
          }
        }
      }
    }
  });
}

TEST_CASE("Streaming equals the reference over many tiles") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    if (op != ReduceOp::kSum && op != ReduceOp::kMax && op != ReduceOp::kAvg) return;  // the same
    for (const Placement placement : kPlacements) {
      for (const uint32_t k : {1u, 2u, 3u}) {
        const uint32_t m = k == 2 ? 1 : 2;
        check({type, op, k, m, -1, 30'000 / size_of(type) + 5, placement, m}, values);
      }
    }
  });
}

TEST_CASE("Scaled and divided sums equal the reference in all shapes, streamed and not") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    if (op != ReduceOp::kSum) return;
    for (uint32_t k = 1; k <= std::size(kFactors); ++k) {
      for (uint32_t m = 1; m <= 2; ++m) {
        for (const Placement placement : kPlacements) {
          for (uint32_t nontemporal = 0; nontemporal <= m; ++nontemporal) {
            const int in_place = static_cast<int>(k) - 1 - static_cast<int>(nontemporal);
            for (const size_t bytes : {17, 700}) {
              const size_t count = bytes / size_of(type) + k % 3;
              Case c{type, op, k, m, std::max(in_place, -1), count, placement, nontemporal, true};
              check(c, values);
              if (type == DataType::kBool) continue;
              c.divided = true;
              check(c, values);
              c.scaled = false;
              check(c, values);
            }
          }
        }
      }
    }
  });
}

// Each instruction set against the reference.
void check_patterns(DataType type, ReduceOp op, const SmallOperands& operands) {
  const auto expected = operands.fold(type, op, scalar_move_function(type, op));
  for (const char* set : instruction_sets()) {
    const auto actual = operands.fold(type, op, move_function_for(set, type, op));
    INFO(set << " " << name(type) << " " << name(op) << " with pattern " << int(operands.second[0])
             << " " << int(operands.second[1]));
    CHECK(wrong_elements(type, actual, expected) == 0);
  }
}

TEST_CASE("16-bit floats round as the reference does, for every pattern", "[again]") {
  for_each_pattern({DataType::kFloat16, DataType::kBFloat16}, check_patterns);
}

TEST_CASE("fp8 rounds as the reference does, for every pair of patterns") {
  for_each_pattern({DataType::kFloat8E4M3, DataType::kFloat8E5M2}, check_patterns);
}

// A factor that is a NaN with all bits set must not carry a bfloat16's NaN into another value.
TEST_CASE("A factor that is NaN makes NaN in every floating type") {
  const double nan = std::bit_cast<double>(~uint64_t{0});
  for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16,
                              DataType::kBFloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    const std::vector<std::byte> source(64 * size_of(type));
    for (const char* set : instruction_sets()) {
      std::vector<std::byte> result(source.size());
      fold_into(result.data(), {source.data()}, move_function_for(set, type, ReduceOp::kSum),
                {.count = 64, .factors = &nan});
      size_t others = 0;
      for (size_t i = 0; i < 64; ++i) others += !is_nan(type, result.data() + i * size_of(type));
      INFO(set << " " << name(type));
      CHECK(others == 0);
    }
  }
}

}  // namespace
}  // namespace rondo::kernels
