// What GPU threads do, done by a loop over threads: every element is somebody's exactly once, and
// all threads together do what the scalar reference does, in every bit. The code is the device's.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/harness/sanitized.hpp"
#include "tests/kernels/shares.hpp"

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
void check_cover() {
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
  check_cover<1>();
  check_cover<4>();
  check_cover<8>();
}

void check_share(const Case& c, const std::vector<std::byte>& values, size_t threads) {
  check_shares(c, values, threads, [&](const Move& move, const Share& share) {
    move_share(c.type, c.op, move, share);
  });
}

const std::vector<size_t> kThreads =
    testing::kSanitized ? std::vector<size_t>{1, 7} : std::vector<size_t>{1, 3, 32};

TEST_CASE("Threads together equal the reference in all shapes, in place on every source") {
  size_t turn = 0;
  for_each_shape({1, 2, 3, 9}, [&](const Case& c, const std::vector<std::byte>& values) {
    check_share(c, values, kThreads[turn++ % std::size(kThreads)]);
  });
}

TEST_CASE("Threads together equal the reference at every edge of count and alignment") {
  for_each_edge([](const Case& c, const std::vector<std::byte>& values) {
    for (const size_t threads : kThreads) check_share(c, values, threads);
  });
}

TEST_CASE("Threads together equal the reference in scaled and divided sums") {
  for_each_rare_sum([](const Case& c, const std::vector<std::byte>& values) {
    for (const size_t threads : kThreads) check_share(c, values, threads);
  });
}

TEST_CASE("Threads round small floats as the reference does, for every pattern", "[again]") {
  for_each_pattern(
      {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat8E4M3, DataType::kFloat8E5M2},
      [](DataType type, ReduceOp op, const SmallOperands& operands) {
        const auto actual = operands.fold(type, op, [&](const Move& move) {
          move_share(type, op, move, Share{0, 1});
        });
        const auto expected = operands.fold(type, op, scalar_move_function(type, op));
        CHECK(wrong_elements(type, actual, expected) == 0);
      });
}

}  // namespace
}  // namespace rondo::kernels
