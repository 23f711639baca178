// What GPU threads do, done by a loop over threads: every element is somebody's exactly once, and
// all threads together do what the scalar reference does, in every bit. The code is the device's.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/dispatch.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/sanitized.hpp"
#include "tests/kernels/arena.hpp"

namespace rondo::kernels {
namespace {

using namespace test;
using namespace cuda;

TEST_CASE("A partition covers all elements, by the widest accesses that addresses allow") {
  for (const size_t element : {1, 2, 4, 8}) {
    for (uintptr_t address = 64; address < 64 + 32; ++address) {
      for (const uintptr_t differences : {0, 32, 24, 8, 4, 6, 3}) {
        for (size_t count = 0; count < 70; ++count) {
          const Partition p = partition(count, element, address, differences);
          const size_t in_vector = kVectorBytes / element;
          REQUIRE(p.head + p.vectors * in_vector + p.tail == count);
          REQUIRE((p.vectors == 0 || (address + p.head * element) % p.width == 0));
          REQUIRE(differences % p.width == 0);
          // No more single elements than there have to be.
          REQUIRE(p.tail < in_vector);
          REQUIRE(p.head < in_vector);
        }
      }
    }
    // As wide as the difference is, where whole elements come to it.
    REQUIRE(partition(99, element, 64 + element, 32).width == 16);
    REQUIRE(partition(99, element, 64 + element, 24).width == 8);
    REQUIRE(partition(99, element, 64 + element, 12).width == 4);
    REQUIRE(partition(99, element, 64, 6).width == 2);
    REQUIRE(partition(99, element, 65, 32).width == (element == 1 ? 16 : 1));
  }
}

template <int kUnroll>
void check_shares() {
  for (const size_t threads : {1, 2, 7, 32}) {
    for (const uintptr_t address : {64, 65, 68, 72}) {
      for (const uintptr_t differences : {0, 8, 1}) {
        for (size_t count = 0; count < 300; ++count) {
          constexpr size_t kElement = 4;
          std::vector<int> touched(count * kElement + 1);
          const auto touch = [&](size_t at, size_t bytes, size_t width) {
            if ((address + at) % width != 0 || bytes % width != 0) FAIL("not aligned");
            for (size_t b = 0; b < bytes; ++b) ++touched.at(at + b);
          };
          const Partition p = partition(count, kElement, address, differences);
          for (size_t thread = 0; thread < threads; ++thread) {
            for_share<kUnroll>(
                p, kElement, Share{thread, threads},
                [&](size_t at) {
                  for (size_t u = 0; u < kUnroll; ++u) {
                    touch(at + u * threads * kVectorBytes, kVectorBytes, kVectorBytes);
                  }
                },
                [&](size_t at, Access access) { touch(at, access.bytes, access.width); });
          }
          REQUIRE(std::count(touched.begin(), touched.end() - 1, 1) ==
                  static_cast<ptrdiff_t>(count * kElement));
          REQUIRE(touched.back() == 0);
        }
      }
    }
  }
}

TEST_CASE("Shares of threads touch every byte exactly once, by accesses that are aligned") {
  check_shares<1>();
  check_shares<4>();
  check_shares<8>();
}

void check_share(const Case& c, const std::vector<std::byte>& values, size_t threads) {
  Arena expected(c, values), actual(c, values);
  expected.run(scalar_move_function(c.type, c.op));
  actual.run([&](const Move& move) {
    // Any order of threads will do, so take an odd one.
    for (size_t t = threads; t-- > 0;) move_share(c.type, c.op, move, Share{t, threads});
  });
  const ptrdiff_t at = actual.difference(expected);
  if (at >= 0) FAIL(describe(c) << " threads " << threads << ": differs at byte " << at);
  SUCCEED();  // counted
}

const std::vector<size_t> kThreads =
    testing::kSanitized ? std::vector<size_t>{1, 7} : std::vector<size_t>{1, 3, 32};

TEST_CASE("Threads together equal the reference in all shapes, in place on every source") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    size_t turn = 0;
    for (const uint32_t k : {1u, 2u, 3u, 9u}) {
      for (uint32_t m = 1; m <= 3; ++m) {
        for (int in_place = -1; in_place < static_cast<int>(k); ++in_place) {
          for (const Placement placement : kPlacements) {
            const size_t count = 700 / size_of(type) + (k + m) % 5;
            check_share({type, op, k, m, in_place, count, placement, 0}, values,
                        kThreads[turn++ % std::size(kThreads)]);
          }
        }
      }
    }
  });
}

TEST_CASE("Threads together equal the reference at every edge of count and alignment") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    for (const size_t threads : kThreads) {
      for (const size_t count : edge_counts(type)) {
        for (const Placement placement : kPlacements) {
          check_share({type, op, 1, 2, 0, count, placement, 0}, values, threads);
          check_share({type, op, 2, 1, -1, count, placement, 0}, values, threads);
          check_share({type, op, 3, 2, 1, count, placement, 0}, values, threads);
        }
      }
    }
  });
}

// As on the device, where instructions convert several values.
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
struct FloatsInWords {
  using Fp16 = InWords<Half>;
  using Bf16 = InWords<BFloat16>;
  using Fp8E4M3 = InWords<E4M3>;
  using Fp8E5M2 = InWords<E5M2>;
};

TEST_CASE("Values that are converted by words equal the reference") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    if (!is_floating(type) || size_of(type) > 2) return;
    for (const size_t count : edge_counts(type)) {
      for (const Placement placement : kPlacements) {
        const Case c = {type, op, 3, 2, 1, count, placement, 0};
        Arena expected(c, values), actual(c, values);
        expected.run(scalar_move_function(c.type, c.op));
        actual.run([&](const Move& move) {
          for (size_t t = 3; t-- > 0;) move_share<FloatsInWords>(c.type, c.op, move, Share{t, 3});
        });
        const ptrdiff_t at = actual.difference(expected);
        if (at >= 0) FAIL(describe(c) << ": differs at byte " << at);
        SUCCEED();
      }
    }
  });
}

TEST_CASE("Threads together equal the reference in scaled and divided sums") {
  for_each_kernel([](DataType type, ReduceOp op, const std::vector<std::byte>& values) {
    if (op != ReduceOp::kSum && op != ReduceOp::kScaledSum) return;
    for (uint32_t k = 1; k <= std::size(kFactors); ++k) {
      for (const Placement placement : kPlacements) {
        for (const size_t threads : kThreads) {
          const size_t count = 700 / size_of(type) + k % 3;
          check_share({type, op, k, 2, -1, count, placement, 0, true}, values, threads);
          if (type == DataType::kBool || op != ReduceOp::kSum) continue;
          check_share({type, op, k, 2, -1, count, placement, 0, true, true}, values, threads);
          check_share({type, op, k, 2, -1, count, placement, 0, false, true}, values, threads);
        }
      }
    }
  });
}

// Every pattern of small floats, so that no conversion is right only for most.
TEST_CASE("Threads round small floats as the reference does, for every pattern", "[again]") {
  std::vector<uint16_t> all(65536), other(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<uint16_t> expected(all.size()), actual(all.size());
  for (const DataType type :
       {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      for (const uint16_t pattern : {0x8080, 0x3838, 0x0101, 0x7f7f, 0x7c7c, 0xfcfc, 0x4321}) {
        std::fill(other.begin(), other.end(), pattern);
        const std::byte* sources[] = {reinterpret_cast<const std::byte*>(all.data()),
                                      reinterpret_cast<const std::byte*>(other.data())};
        const auto run = [&](std::vector<uint16_t>& result, const auto& function) {
          std::byte* destinations[] = {reinterpret_cast<std::byte*>(result.data())};
          function(Move{.sources = sources,
                        .destinations = destinations,
                        .source_count = 2,
                        .destination_count = 1,
                        .count = all.size() * 2 / size_of(type),
                        .divisor = 1,
                        .nontemporal = 0});
        };
        run(expected, scalar_move_function(type, op));
        run(actual, [&](const Move& move) { move_share(type, op, move, Share{0, 1}); });
        CHECK(wrong_elements(type, actual, expected) == 0);
      }
    }
  }
}

}  // namespace
}  // namespace rondo::kernels
