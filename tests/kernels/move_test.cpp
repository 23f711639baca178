// Every kernel of every instruction set that this CPU has equals the scalar reference in every bit,
// any NaN counting as equal to any other: types, operators, shapes, in place, counts, alignments,
// both kinds of store; and touches nothing else.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kernels/float8.hpp"
#include "kernels/half.hpp"
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
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    uint32_t turn = 0;
    for (uint32_t k = 1; k <= 9; ++k) {
      if (testing::kSanitized && k > 3 && k < 9) continue;
      for (uint32_t m = 1; m <= 3; ++m) {
        for (int in_place = -1; in_place < static_cast<int>(k); ++in_place) {
          const size_t count =
              700 / size_of(type) + (k + m + static_cast<uint32_t>(in_place + 1)) % 5;
          for (const Placement placement : kPlacements) {
            const uint32_t nontemporal = turn++ % (m + 1);  // the next test has all everywhere
            check({type, op, k, m, in_place, count, placement, nontemporal}, values);
          }
          ++turn;
        }
      }
    }
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

// Elementwise over patterns of a 16-bit or an 8-bit float: each instruction set against the
// reference.
template <class T>
void check_patterns(DataType type, ReduceOp op, const std::vector<T>& all,
                    const std::vector<T>& other) {
  std::vector<T> expected(all.size()), actual(all.size());
  const auto run = [&](MoveFunction function, std::vector<T>& result) {
    const std::byte* sources[] = {reinterpret_cast<const std::byte*>(all.data()),
                                  reinterpret_cast<const std::byte*>(other.data())};
    std::byte* destinations[] = {reinterpret_cast<std::byte*>(result.data())};
    function({.sources = sources,
              .destinations = destinations,
              .source_count = 2,
              .destination_count = 1,
              .count = all.size(),
              .divisor = op == ReduceOp::kAvg ? 3u : 1u,
              .nontemporal = 0});
  };
  run(scalar_move_function(type, op), expected);
  for (const char* set : instruction_sets()) {
    run(move_function_for(set, type, op), actual);
    size_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (actual[i] == expected[i]) continue;
      const auto* a = reinterpret_cast<const std::byte*>(&actual[i]);
      const auto* e = reinterpret_cast<const std::byte*>(&expected[i]);
      wrong += !is_nan(type, a) || !is_nan(type, e);
    }
    INFO(set << " " << name(type) << " " << name(op) << " with pattern " << int{other[0]});
    CHECK(wrong == 0);
  }
}

// Sums and products of every 16-bit pattern with values that reach ties, denormals and overflow,
// and with NaNs, whose payloads must not round to something else.
TEST_CASE("16-bit floats round as the reference does, for every pattern", "[again]") {
  constexpr size_t kPatterns = 65536;
  std::vector<uint16_t> all(kPatterns), other(kPatterns);
  for (size_t i = 0; i < kPatterns; ++i) all[i] = static_cast<uint16_t>(i);
  for (const DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    const auto from_float = type == DataType::kFloat16 ? half_from_float : bfloat16_from_float;
    std::vector<uint16_t> others = {0x7fff, 0xffff, 0x7f81, 0x7c01};
    for (const float value : {-0.0f, 1.0f, 0.5f, 0.25f, 0.75f, -1.5f, 3.0f, 0x1p-10f, 0x1p-12f,
                              0x1.8p-14f, 0x1p-24f, 100.0f, 32768.0f, 0x1p-100f, 0x1p100f}) {
      others.push_back(from_float(value));
    }
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
      for (const uint16_t pattern : others) {
        std::fill(other.begin(), other.end(), pattern);
        check_patterns(type, op, all, other);
      }
    }
  }
}

TEST_CASE("fp8 rounds as the reference does, for every pair of patterns") {
  std::vector<uint8_t> all(256), other(256);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
  for (const DataType type : {DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kAvg}) {
      for (const uint8_t pattern : all) {
        std::fill(other.begin(), other.end(), pattern);
        check_patterns(type, op, all, other);
      }
    }
  }
}

// A factor that is a NaN with all bits set must not carry a bfloat16's NaN into another value.
TEST_CASE("A factor that is NaN makes NaN in every floating type") {
  double factors[] = {std::bit_cast<double>(~uint64_t{0})};
  for (const DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16,
                              DataType::kBFloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    const std::vector<std::byte> source(64 * size_of(type));
    std::vector<std::byte> result(source.size());
    const std::byte* sources[] = {source.data()};
    std::byte* destinations[] = {result.data()};
    for (const char* set : instruction_sets()) {
      std::fill(result.begin(), result.end(), std::byte{});
      move_function_for(set, type, ReduceOp::kSum)({.sources = sources,
                                                    .destinations = destinations,
                                                    .source_count = 1,
                                                    .destination_count = 1,
                                                    .count = 64,
                                                    .divisor = 1,
                                                    .nontemporal = 0,
                                                    .factors = factors});
      size_t others = 0;
      for (size_t i = 0; i < 64; ++i) others += !is_nan(type, result.data() + i * size_of(type));
      INFO(set << " " << name(type));
      CHECK(others == 0);
    }
  }
}

}  // namespace
}  // namespace rondo::kernels
