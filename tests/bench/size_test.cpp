// Sizes, sweeps and the formulae of bandwidths.
#include "bench/harness/size.hpp"

#include "bench/harness/shape.hpp"
#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

TEST_CASE("sizes are whole numbers with binary suffixes") {
  CHECK(parse_size("0") == 0u);
  CHECK(parse_size("8") == 8u);
  CHECK(parse_size("64K") == 65536u);
  CHECK(parse_size("3m") == 3u << 20);
  CHECK(parse_size("5G") == size_t{5} << 30);
  for (const char* bad : {"", "K", "-1", "+1", "1.5M", "1KB", "1 K", "64KK", "0x10",
                          "99999999999999999999", "17179869184G"}) {
    INFO(bad);
    CHECK_FALSE(parse_size(bad).has_value());
  }
}

TEST_CASE("sizes are printed with the largest unit that loses nothing") {
  CHECK(format_size(0) == "0");
  CHECK(format_size(1000) == "1000");
  CHECK(format_size(65536) == "64K");
  CHECK(format_size(size_t{3} << 30) == "3G");
  CHECK(format_size((size_t{1} << 20) + 1024) == "1025K");
}

TEST_CASE("a sweep ends at its maximum or just below") {
  using Sizes = std::vector<size_t>;
  CHECK(sizes_of({.min = 8, .max = 64, .factor = 2, .step = 0}) == Sizes{8, 16, 32, 64});
  CHECK(sizes_of({.min = 8, .max = 100, .factor = 4, .step = 0}) == Sizes{8, 32});
  CHECK(sizes_of({.min = 10, .max = 25, .factor = 1, .step = 5}) == Sizes{10, 15, 20, 25});
  CHECK(sizes_of({.min = 10, .max = 24, .factor = 1, .step = 5}) == Sizes{10, 15, 20});
  CHECK(sizes_of({.min = 7, .max = 7, .factor = 1, .step = 0}) == Sizes{7});
  CHECK(sizes_of({.min = SIZE_MAX / 2, .max = SIZE_MAX, .factor = 3, .step = 0}) ==
        Sizes{SIZE_MAX / 2});
}

TEST_CASE("bus bandwidth factors are nccl-tests'") {
  CHECK(bus_factor(Collective::kAllReduce, 2) == Approx(1.0));
  CHECK(bus_factor(Collective::kAllReduce, 4) == Approx(1.5));
  CHECK(bus_factor(Collective::kReduceScatter, 4) == Approx(0.75));
  CHECK(bus_factor(Collective::kAllGather, 4) == Approx(0.75));
  CHECK(bus_factor(Collective::kBroadcast, 4) == Approx(1.0));
  CHECK(bus_factor(Collective::kAllReduce, 1) == Approx(0.0));
}

TEST_CASE("size is the larger buffer and count the collective's parameter") {
  const CallShape reduce =
      shape_of(Collective::kReduceScatter, DataType::kFloat32, ReduceOp::kSum, 0, 1000, 3);
  CHECK(reduce.count == 83);
  CHECK(in_elements(reduce, 3) == 249);
  CHECK(out_elements(reduce, 3) == 83);
  CHECK(size_bytes(reduce, 3) == 996);
  const CallShape gather =
      shape_of(Collective::kAllGather, DataType::kFloat64, ReduceOp::kSum, 0, 64, 4);
  CHECK(in_elements(gather, 4) == 2);
  CHECK(out_elements(gather, 4) == 8);
  const CallShape sum =
      shape_of(Collective::kAllReduce, DataType::kFloat16, ReduceOp::kSum, 0, 9, 4);
  CHECK(size_bytes(sum, 4) == 8);
  CHECK(alg_bandwidth({.collective = Collective::kAllReduce,
                       .type = DataType::kUint8,
                       .op = ReduceOp::kSum,
                       .root = 0,
                       .count = 1'000'000},
                      2, 1000.0) == Approx(1.0));  // 1 MB in 1 ms
}

TEST_CASE("least traffic counts every needed byte once") {
  const auto traffic = [](Collective collective, int rank) {
    const LeastTraffic least =
        least_traffic(shape_of(collective, DataType::kUint8, ReduceOp::kSum, 1, 400, 4), rank, 4);
    return std::pair(least.reads, least.writes);
  };
  using ReadsWrites = std::pair<size_t, size_t>;
  CHECK(traffic(Collective::kAllReduce, 0) == ReadsWrites{400, 400});
  CHECK(traffic(Collective::kReduceScatter, 0) == ReadsWrites{400, 100});
  CHECK(traffic(Collective::kAllGather, 0) == ReadsWrites{100, 400});
  CHECK(traffic(Collective::kBroadcast, 0) == ReadsWrites{0, 400});
  CHECK(traffic(Collective::kBroadcast, 1).first == 400);
}
