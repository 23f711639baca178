// The closed-form data is exact in every type and gives another number for every kind of mistake.
#include "bench/harness/pattern.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

namespace {

/// With the largest number up to which the type holds every whole number.
constexpr std::pair<DataType, uint64_t> kTypes[] = {
    {DataType::kFloat32, 1 << 24},   {DataType::kFloat64, uint64_t{1} << 53},
    {DataType::kFloat16, 1 << 11},   {DataType::kBFloat16, 1 << 8},
    {DataType::kInt32, INT32_MAX},   {DataType::kInt64, uint64_t{1} << 53},
    {DataType::kUint8, 255},         {DataType::kInt8, 127},
    {DataType::kInt16, 32767},       {DataType::kUint16, 65535},
    {DataType::kUint32, UINT32_MAX}, {DataType::kUint64, uint64_t{1} << 53}};

CallShape shape_with(Collective collective, DataType type, ReduceOp op, size_t count) {
  return {.collective = collective, .type = type, .op = op, .root = 0, .count = count};
}

}  // namespace

TEST_CASE("sums and averages stay exact in every type") {
  for (const auto& [type, exact_below] : kTypes) {
    for (int ranks : {1, 2, 3, 8, 64}) {
      INFO(name(type) << " " << ranks);
      const Pattern sum(shape_with(Collective::kAllReduce, type, ReduceOp::kSum, 500), ranks);
      const Pattern average(shape_with(Collective::kAllReduce, type, ReduceOp::kAvg, 500), ranks);
      for (uint64_t i = 0; i < 500; ++i) {
        REQUIRE(sum.reduced(i) <= exact_below);
        uint64_t total = 0;
        for (int r = 0; r < ranks; ++r) {
          REQUIRE(sum.contribution(r, i) > 0);
          total += average.contribution(r, i);
        }
        REQUIRE(total <= exact_below);
        REQUIRE(total % static_cast<uint64_t>(ranks) == 0);
        REQUIRE(average.reduced(i) * static_cast<uint64_t>(ranks) == total);
      }
    }
  }
}

TEST_CASE("products fit half precision and every rank decides some of them") {
  for (int ranks : {2, 5, 8, 64}) {
    const Pattern product(
        shape_with(Collective::kAllReduce, DataType::kFloat16, ReduceOp::kProd, 200), ranks);
    std::vector<bool> decides(static_cast<size_t>(ranks), false);
    for (uint64_t i = 0; i < 200; ++i) {
      REQUIRE(product.reduced(i) <= (1 << 14));
      for (int r = 0; r < ranks; ++r) {
        if (product.contribution(r, i) > 1) decides[static_cast<size_t>(r)] = true;
      }
    }
    CHECK(decides == std::vector<bool>(static_cast<size_t>(ranks), true));
  }
}

TEST_CASE("a missing, doubled or misplaced contribution changes a sum") {
  for (const auto& [type, exact_below] : kTypes) {
    for (int ranks : {2, 3, 7}) {
      INFO(name(type) << " " << ranks);
      const Pattern sum(shape_with(Collective::kAllReduce, type, ReduceOp::kSum, 4096), ranks);
      size_t same_rank = 0, same_index = 0;
      for (uint64_t i = 0; i < 4096; ++i) {
        for (int r = 0; r < ranks; ++r) {
          // So that leaving it out, or adding it twice, shows.
          REQUIRE(sum.contribution(r, i) != 0);
          same_rank += sum.contribution(r, i) == sum.contribution((r + 1) % ranks, i);
          same_index += sum.contribution(r, i) == sum.contribution(r, i + 1024);
        }
      }
      const auto all = static_cast<size_t>(4096 * ranks);
      CHECK(same_rank < all / 10);
      CHECK(same_index < all / 10);
    }
  }
}

TEST_CASE("in sendrecv a rank expects what the rank before it has, and notices another's") {
  const CallShape shape = shape_of(kSendRecv, DataType::kInt32, ReduceOp::kSum, 0, 4000, 5);
  REQUIRE(shape.count == 1000);
  REQUIRE(in_elements(shape, 5) == 1000);
  REQUIRE(out_elements(shape, 5) == 1000);
  const Pattern pattern(shape, 5);
  std::vector<int32_t> data(1000);
  for (int from = 0; from < 5; ++from) {
    pattern.fill_input(from, data.data());
    for (int rank = 0; rank < 5; ++rank) {
      const size_t wrong = pattern.wrong_output(rank, data.data());
      CHECK((rank == (from + 1) % 5 ? wrong == 0 : wrong > 900));
    }
  }
}

TEST_CASE("every rank is the extremum somewhere") {
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    const Pattern pattern(shape_with(Collective::kAllReduce, DataType::kFloat32, op, 1000), 5);
    std::vector<size_t> decides(5, 0);
    for (uint64_t i = 0; i < 1000; ++i) {
      for (int r = 0; r < 5; ++r)
        decides[static_cast<size_t>(r)] += pattern.contribution(r, i) == pattern.reduced(i);
    }
    for (size_t times : decides) CHECK(times > 100);
  }
}

TEST_CASE("encoded integers are the type's own numbers") {
  const auto first_bits = [](DataType type, ReduceOp op, int ranks) {
    const Pattern pattern(shape_with(Collective::kAllReduce, type, op, 1), ranks);
    std::vector<std::byte> data(8);
    pattern.fill_input(0, data.data());
    uint16_t bits = 0;
    std::memcpy(&bits, data.data(), sizeof(bits));
    return std::pair(bits, pattern.contribution(0, 0));
  };
  const auto [half, half_value] = first_bits(DataType::kFloat16, ReduceOp::kSum, 2);
  // IEEE half: sign, 5 bits of exponent with bias 15, 10 of fraction
  const double fraction = 1 + (half & 0x3ff) / 1024.0;
  CHECK(fraction * std::pow(2.0, ((half >> 10) & 0x1f) - 15) == static_cast<double>(half_value));
  const auto [brain, brain_value] = first_bits(DataType::kBFloat16, ReduceOp::kSum, 2);
  CHECK(std::bit_cast<float>(static_cast<uint32_t>(brain) << 16) ==
        static_cast<float>(brain_value));
  // OCP's E4M3, bias 7, and E5M2, bias 15
  const auto [e4m3, e4m3_value] = first_bits(DataType::kFloat8E4M3, ReduceOp::kMax, 2);
  CHECK((1 + (e4m3 & 7) / 8.0) * std::pow(2.0, ((e4m3 >> 3) & 0xf) - 7) ==
        static_cast<double>(e4m3_value));
  const auto [e5m2, e5m2_value] = first_bits(DataType::kFloat8E5M2, ReduceOp::kMax, 2);
  CHECK((1 + (e5m2 & 3) / 4.0) * std::pow(2.0, ((e5m2 >> 2) & 0x1f) - 15) ==
        static_cast<double>(e5m2_value));
}

TEST_CASE("fp8 and bool stay exact as long as a sum of ones does") {
  for (const auto& [type, most] : {std::pair{DataType::kFloat8E4M3, uint64_t{16}},
                                   {DataType::kFloat8E5M2, uint64_t{8}},
                                   {DataType::kBool, uint64_t{1}}}) {
    for (const int ranks : {1, 2, 3, 5, 8}) {
      INFO(name(type) << " " << ranks);
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
        if (!supports(type, op)) continue;
        const Pattern pattern(shape_with(Collective::kAllReduce, type, op, 100), ranks);
        for (uint64_t i = 0; i < 100; ++i) {
          REQUIRE(pattern.reduced(i) > 0);
          REQUIRE(pattern.reduced(i) <= most);
        }
      }
      const Pattern product(shape_with(Collective::kAllReduce, type, ReduceOp::kProd, 100), ranks);
      for (uint64_t i = 0; i < 100; ++i) REQUIRE(product.reduced(i) <= 128);
    }
  }
}
