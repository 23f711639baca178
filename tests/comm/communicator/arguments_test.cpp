// Bad input is refused before anything moves, with the offending value in the message, and loses
// nothing: the communicator works on afterwards.
#include <sys/resource.h>

#include <array>
#include <cstdlib>

#include "rondo/rondo.h"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

struct NoFactor {
  DataType type;
  double factor;
  const char* says;
};
/// What no element of the type can be multiplied by.
const NoFactor kNoFactors[] = {
    {DataType::kInt32, 0.5, "a factor of 0.5 is not a value of int32"},
    {DataType::kInt32, NAN, "a factor of nan is not a value of int32"},
    {DataType::kUint64, INFINITY, "a factor of inf is not a value of uint64"},
    {DataType::kInt8, 300, "a factor of 300 is not a value of int8"},
    {DataType::kInt8, -129, "a factor of -129"},
    {DataType::kUint8, -1, "a factor of -1"},
    {DataType::kUint8, 256, "a factor of 256"},
    {DataType::kInt16, 32768, "a factor of 32768"},
    {DataType::kUint16, 65536, "a factor of 65536"},
    {DataType::kUint32, 0x1p32, "a factor of 4294967296"},
    {DataType::kInt64, 0x1p63, "is not a value of int64"},
    {DataType::kUint64, 0x1p64, "is not a value of uint64"},
    {DataType::kBool, NAN, "a factor of nan is not a value of bool"},
    {DataType::kFloat32, 1e39, "a factor of 1e+39 becomes inf in fp32"},
    {DataType::kFloat16, -1e39, "a factor of -1e+39 becomes -inf in fp32"},
    {DataType::kBFloat16, 1e-50, "a factor of 1e-50 becomes 0 in fp32"},
    {DataType::kFloat8E4M3, 1e300, "becomes inf in fp32, in which f8e4m3 is multiplied"},
};
/// What it can, up to the ends of its range.
const std::pair<DataType, double> kFactors[] = {
    {DataType::kInt8, -128},         {DataType::kUint8, 255},      {DataType::kInt32, -0x1p31},
    {DataType::kUint32, 0x1p32 - 1}, {DataType::kInt64, -0x1p63},  {DataType::kUint64, 0x1p63},
    {DataType::kBool, 0.5},          {DataType::kFloat32, 3.4e38}, {DataType::kFloat32, 1e-45},
    {DataType::kFloat32, NAN},       {DataType::kFloat16, 1e6},    {DataType::kFloat16, INFINITY},
    {DataType::kFloat64, 1e300}};

}  // namespace

TEST_CASE("a call ignores what its collective does not use, and refuses what it needs and lacks") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    using C = Collective;
    const int r = comm.rank();
    std::array<int32_t, 4> in{r, r, r, r}, out{};
    // Nothing of these differs for the collective.
    const size_t sent = r == 0 ? 3 : 7;
    expect_ok(
        comm.run({C::kAllGather, &in, &out, 1, kInt, r == 0 ? ReduceOp::kMax : ReduceOp::kSum, r}),
        "all_gather");
    expect(out[0] == 0 && out[1] == 1, "gathered");
    expect_ok(comm.run({C::kBarrier, &in, &out, sent, r == 0 ? kInt : kFloat, ReduceOp::kSum, r}),
              "barrier");
    const std::array<size_t, 2> ones{1, 1};
    const Blocks blocks{ones, {}, ones, {}};
    expect_ok(comm.run({C::kAllToAllV, &in, &out, sent, kInt, ReduceOp::kSum, r, &blocks}),
              "all_to_all_v");
    std::array<unsigned char, 2> bytes{0x7f, 0}, all{};
    expect_ok(comm.run({C::kAllGather, &bytes, &all, 1, DataType::kBool, ReduceOp::kMulSum}),
              "all_gather of bytes");
    expect(all[0] == 0x7f && all[1] == 0x7f, "copied");
    expect_ok(comm.run({C::kBroadcast, &in, &out, 1, kFloat, ReduceOp::kBand, 0}), "broadcast");
    expect_refused(comm.run({.in = &in, .out = &out, .count = 1, .type = kInt}),
                   "Call::collective");
    expect_refused(comm.run({.collective = C::kAllReduce, .in = &in, .out = &out, .count = 1}),
                   "unknown data type 255");
    expect_refused(comm.run({C::kAllGatherV, &in, &out, 0, kInt}), "Call::blocks is null");
    expect_ok(comm.barrier(), "barrier");
  });
}

TEST_CASE("bad arguments are refused by value, and the communicator goes on", "[one_host]") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    Buffer a(4096, false), b(4096, false);
    unsigned char *in = a.data(), *out = b.data();
    const auto type = kFloat;
    const ReduceOp sum = ReduceOp::kSum, scaled = ReduceOp::kMulSum;
    expect_refused(comm.all_reduce(nullptr, out, 7, type),
                   "input pointer is null but holds 28 bytes");
    expect_refused(comm.all_reduce(in, nullptr, 7, type),
                   "output pointer is null but holds 28 bytes");
    expect_refused(comm.all_reduce(in, out, SIZE_MAX / 2, type), "overflows");
    expect_refused(comm.reduce_scatter(in, out, SIZE_MAX / 12, type), "overflows");
    expect_refused(comm.all_reduce(in, out, 7, static_cast<DataType>(99)), "unknown data type 99");
    expect_refused(comm.all_reduce(in, out, 7, type, static_cast<ReduceOp>(77)),
                   "unknown operator 77");
    expect_refused(comm.all_reduce(in, out, 7, type, ReduceOp::kBxor), "no bxor of float");
    expect_refused(comm.all_reduce(in, out, 7, type, sum, {.factor = 0.5}), "a factor of 0.5");
    expect_refused(comm.reduce(in, out, 7, DataType::kBool, ReduceOp::kAvg, 0), "no avg of bool");
    for (const auto& [held_by, factor, says] : kNoFactors) {
      expect_refused(comm.all_reduce(in, out, 7, held_by, scaled, {.factor = factor}), says);
    }
    for (const auto& [held_by, factor] : kFactors) {
      expect_ok(comm.all_reduce(in, out, 7, held_by, scaled, {.factor = factor}),
                std::string(name(held_by)) + " times " + std::to_string(factor));
    }
    expect_refused(
        comm.all_reduce(in, out, 7, type, sum, {.algorithm = static_cast<Algorithm>(88)}),
        "algorithm 88");
    for (const uint64_t layout : {0x1234, 0x1, 0x1442, 0x24, 0x130, 0x1352}) {
      expect_refused(comm.all_reduce(in, out, 7, type, sum, {.layout = layout}),
                     "invalid layout 0x");
    }
    expect_refused(comm.send(in, 7, type, 1 - comm.rank(), {.layout = 0x21}), "layouts are for");
    expect_ok(comm.all_reduce(in, out, 7, type, sum, {.layout = 0x1342}), "layout");
    expect_refused(comm.broadcast(in, out, 7, type, 2), "root 2");
    expect_refused(comm.broadcast(in, out, 7, type, -1), "root -1");
    expect_refused(comm.all_reduce(in, in + 4, 100, type), "overlap");
    expect_refused(comm.all_gather(in, in + 4, 100, type), "overlap");
    const std::vector<size_t> two{3, 4}, one{3}, huge{3, SIZE_MAX}, gap{0, 2};
    expect_refused(comm.all_gather_v(in, out, one, {}, type), "1 counts and 1 offsets");
    expect_refused(comm.all_gather_v(in, out, two, one, type), "2 counts and 1 offsets");
    expect_refused(comm.reduce_scatter_v(in, out, huge, {}, type), "overflows");
    expect_refused(comm.all_gather_v(in, out, two, huge, type), "overflows");
    expect_refused(comm.all_gather_v(in, out, two, gap, type), "blocks 0 and 1 overlap");
    expect_refused(comm.all_gather_v(nullptr, out, two, {}, type), "input pointer is null");
    expect_refused(comm.reduce_scatter_v(in, in + 4, two, {}, type), "overlap");
    expect_refused(comm.all_to_all_v(in, two, {}, in, two, {}, type), "overlap");
    expect_refused(comm.reduce_scatter_v(in, in, two, gap, type), "blocks 0 and 1 overlap");
    const std::vector<size_t> other{5, 5};
    expect_refused(comm.all_to_all_v(in, two, {}, out, other, {}, type), "sends itself");
    expect_refused(comm.gather_v(in, out, one, {}, type, 0), "1 counts and 1 offsets");
    expect_refused(comm.gather_v(in, out, two, {}, type, 2), "root 2");
    expect_refused(comm.scatter_v(in, out, two, huge, type, 0), "overflows");
    expect_refused(comm.inclusive_scan(in, in + 4, 100, type), "overlap");
    expect_refused(comm.exclusive_scan(in, out, 7, type, ReduceOp::kAvg), "no avg in a scan");
    expect_refused(comm.inclusive_scan(in, out, 7, type, ReduceOp::kBor), "no bor of float");
    expect_refused(comm.exclusive_scan(in, out, 7, type, sum, {.factor = 0.5}), "a factor of 0.5");
    expect_refused(comm.barrier({.stall_timeout = std::chrono::milliseconds{-5}}), "-5 ms");
    expect_refused(comm.all_reduce(in, in, 7, type, sum, {.algorithm = Algorithm::kOneShotDirect}),
                   "in place");
    // Of nothing, no pointer means anything, and whether it is the same may differ between ranks.
    expect_ok(comm.all_to_all(nullptr, comm.rank() == 0 ? nullptr : out, 0, type,
                              {.algorithm = Algorithm::kTwoShotDirect}),
              "all_to_all of nothing");
    expect_refused(comm.all_reduce_async(nullptr, out, 3, type).wait(), "null");
    // What a forced algorithm cannot do is refused on every rank, and nothing sticks: here an
    // all-reduce, and plain memory.
    for (const Algorithm algorithm : {Algorithm::kFlat, Algorithm::kTwoShotDirect}) {
      expect_error(comm.all_reduce(in, out, 7, type, sum, {.algorithm = algorithm}),
                   Code::kUnavailable);
    }
    expect_ok(comm.all_reduce(nullptr, nullptr, 0, type), "count 0 needs no pointers");
    calls::all_reduce(comm, {.count = 100}, Collective::kAllReduce);
  });
}

TEST_CASE("bad configurations are refused by value") {
  const TempDirectory directory;
  const auto refused = [&](const Config& config, const std::string& says, int rank = 0,
                           int size = 1) {
    expect_refused(
        Communicator::create(world_config(directory.path(), rank, size, config)).status(), says);
  };
  refused({}, "Config::world_size is 0", 0, 0);
  refused({}, "Config::rank is 5", 5, 2);
  refused({}, "Config::rank is -3", -3);
  refused({}, "Config::world_size is 1048576", 0, 1 << 20);
  refused(with(&Config::channels, -1), "Config::channels is -1");
  refused(with(&Config::max_channels, 65), "Config::max_channels is 65");
  refused(with(&Config::slots, 1), "Config::slots is 1");
  refused(with(&Config::slot_bytes, 3), "Config::slot_bytes is 3");
  refused(with(&Config::stall_timeout, std::chrono::milliseconds{-1}), "-1 ms");
  refused(with(&Config::pace, "fast"), "fast");
  refused(with(&Config::pace, std::string(100, '1')), "too long");
}

TEST_CASE("memory and descriptors exhausted end in an error on every rank, not in a crash") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  // The sanitizers' own shadow needs the address space.
  const std::vector<int> resources{RLIMIT_NOFILE};
#else
  const std::vector<int> resources{RLIMIT_NOFILE, RLIMIT_AS};
#endif
  for (const int resource : resources) {
    const TempDirectory directory;
    require_all_ok(run_ranks(How::kForks, 2, [&](int rank) {
      Config config = world_config(directory.path(), rank, 2);
      config.bootstrap_timeout = 2s;
      if (rank == 1) {
        const rlimit limit =
            resource == RLIMIT_NOFILE ? rlimit{4, 4} : rlimit{size_t{64} << 20, size_t{64} << 20};
        expect(setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0, "setrlimit");
      }
      config.slots = 1024;
      config.slot_bytes = size_t{4} << 20;  // more address space than rank 1 may have
      const auto made = Communicator::create(config);
      expect(!made.ok(), "created");
      expect(!made.status().message().empty(), "no message");
    }));
  }
}

TEST_CASE("the library's version is that of its headers, in C and in C++") {
  CHECK(rondo::version() == RONDO_VERSION);
  const int32_t v = rondo_version();
  CHECK(std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
            std::to_string(v % 100) ==
        RONDO_VERSION);
}

TEST_CASE("endless timeouts are long ones") {
  constexpr auto kEndless = std::chrono::milliseconds::max();
  run_ok(How::kForks, 2, with(&Config::stall_timeout, kEndless), [](Communicator& comm) {
    int32_t value = 1;
    // Each lets the other wait until it has compared with the deadline.
    const auto let_wait = [&](const std::string& who) {
      await(who, [&] { return comm.flight_record().find(who) != std::string::npos; });
    };
    if (comm.rank() == 0) let_wait("waits for rank 0");
    expect_ok(comm.all_reduce(&value, &value, 1, kInt), "all_reduce");
    if (comm.rank() == 1) let_wait("waits for rank 1");
    expect_ok(comm.all_reduce(&value, &value, 1, kInt, ReduceOp::kSum, {.stall_timeout = kEndless}),
              "all_reduce");
    expect_eq(value, 4, "value");
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("where one rank cannot map the library memory of another, all of them go through slots") {
  for (const int size : {2, 3, 5}) {
    const TempDirectory directory;
    require_all_ok(run_ranks(How::kForks, size, [&](int rank) {
      if (rank == 1) {
        // Room for the program and the FIFOs, not for an arena.
        const rlimit limit{size_t{2} << 30, size_t{2} << 30};
        expect(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
      }
      Communicator comm = created(world_config(directory.path(), rank, size));
      const size_t count = 50021;
      void* const memory = rank == 1 ? std::malloc(count * 4) : alloc(count * 4);
      expect(memory != nullptr, "no memory");
      auto* const values = static_cast<int32_t*>(memory);
      for (int turn = 0; turn < 3; ++turn) {
        for (size_t i = 0; i < count; ++i) values[i] = rank + static_cast<int32_t>(i);
        expect_ok(comm.all_reduce(values, values, count, kInt), "all_reduce");
        for (size_t i = 0; i < count; ++i) {
          expect_eq(values[i], size * (size - 1) / 2 + size * static_cast<int32_t>(i), "element");
        }
      }
      const Status direct = comm.all_reduce(values, values, count, kInt, ReduceOp::kSum,
                                            {.algorithm = Algorithm::kTwoShotDirect});
      expect_error(direct, Code::kUnavailable);
    }));
  }
}
#endif

}  // namespace rondo::testing
