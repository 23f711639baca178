// The rule by which host and device compare: what a host test can show of it is shown here for
// every type.
#include "bench/harness/mismatch.hpp"

#include <cstring>
#include <vector>

#include "bench/harness/pattern.hpp"
#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

namespace {

constexpr size_t kElements = 257;

/// What all ways of comparing say about `data`; `expected` is what rank 0 sends and rank 1 gets.
Mismatch compared(const Pattern& pattern, DataType type, const std::vector<std::byte>& data,
                  const std::vector<std::byte>& expected) {
  const size_t count = pattern.out_count(1);
  CHECK(pattern.wrong_input(0, data.data()) == pattern.wrong_output(1, data.data()));
  const Mismatch mismatch = mismatch_of(data.data(), expected.data(), count, size_of(type));
  CHECK(pattern.wrong_output(1, data.data()) == mismatch.wrong);
  return mismatch;
}

}  // namespace

TEST_CASE("an element is right if all its bits are, and the first wrong one is named") {
  for (int i = 0; i < kDataTypes; ++i) {
    const auto type = static_cast<DataType>(i);
    const size_t element = size_of(type);
    INFO(name(type));
    const Pattern pattern({.collective = Collective::kBroadcast,
                           .type = type,
                           .op = ReduceOp::kSum,
                           .root = 0,
                           .count = kElements},
                          2);
    std::vector<std::byte> expected(kElements * element);
    pattern.fill_output(1, expected.data());
    std::vector<std::byte> data = expected;
    CHECK(compared(pattern, type, data, expected).wrong == 0);
    CHECK(compared(pattern, type, data, expected).first == UINT64_MAX);
    for (const size_t at : {size_t{0}, size_t{100}, kElements - 1}) {
      for (size_t bit = 0; bit < 8 * element; ++bit) {  // the sign among them
        std::byte& byte = data[at * element + bit / 8];
        byte ^= std::byte{1} << (bit % 8);
        const Mismatch mismatch = compared(pattern, type, data, expected);
        REQUIRE(mismatch.wrong == 1);
        REQUIRE(mismatch.first == at);
        byte = expected[at * element + bit / 8];
      }
    }
    std::memset(data.data() + 7 * element, 0xff, 2 * element);  // in every floating type a NaN
    CHECK(compared(pattern, type, data, expected).wrong == 2);
    CHECK(compared(pattern, type, data, expected).first == 7);
    std::memset(data.data(), 0, data.size());  // never written
    CHECK(compared(pattern, type, data, expected).wrong == kElements);
  }
}

TEST_CASE("what is expected is the same whether it is written or looked up") {
  for (int c = 0; c <= kCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    INFO(name_of(collective));
    const CallShape shape = shape_of(collective, DataType::kInt32, ReduceOp::kSum, 1, 3000, 3);
    const Pattern pattern(shape, 3);
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<int32_t> output(out_elements(shape, 3) + 1, -1), input(output);
      input.resize(in_elements(shape, 3) + 1, -1);
      pattern.fill_output(rank, output.data());
      pattern.fill_input(rank, input.data());
      CHECK(pattern.wrong_output(rank, output.data()) == 0);
      CHECK(pattern.wrong_input(rank, input.data()) == 0);
      CHECK(output[pattern.out_count(rank)] == -1);
    }
  }
}
