// Checking and timing, on a backend whose faults are ordered.
#include "bench/harness/measure.hpp"

#include <optional>
#include <thread>
#include <utility>

#include "bench/harness/stream.hpp"
#include "tests/bench/thread_backend.hpp"
#include "tests/harness/catch.hpp"

using namespace rondo;
using namespace rondo::bench;

namespace {

constexpr size_t kCount = 300;

CallShape float_shape(Collective collective, size_t count = kCount) {
  return {.collective = collective,
          .type = DataType::kFloat32,
          .op = ReduceOp::kSum,
          .root = 1,
          .count = count};
}

/// What f(backend, buffers) results in on each rank, with buffers that hold any shape of kCount.
template <class F>
auto on_ranks(ThreadWorld& world, const F& f) {
  using Outcome = decltype(f(std::declval<Backend&>(), Buffers{}));
  std::vector<std::optional<Outcome>> outcomes(static_cast<size_t>(world.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadBackend backend(world, rank);
      std::vector<float> in(kCount * static_cast<size_t>(world.ranks)), out(in.size());
      outcomes[static_cast<size_t>(rank)] = f(backend, Buffers{.in = in.data(), .out = out.data()});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::decay_t<decltype(outcomes[0]->value())>> values;
  for (const std::optional<Outcome>& outcome : outcomes) {
    REQUIRE(outcome->ok());
    values.push_back(outcome->value());
  }
  return values;
}

std::vector<uint64_t> wrong_on_ranks(Fault fault, Collective collective, bool in_place, int ranks) {
  ThreadWorld world(ranks);
  world.fault = fault;
  return on_ranks(world, [&](Backend& backend, const Buffers& buffers) {
    return check(backend, float_shape(collective), buffers, in_place);
  });
}

/// An all-reduce, measured on every rank.
std::vector<Measured> measured_on_ranks(ThreadWorld& world, const MeasureOptions& options) {
  return on_ranks(world, [&](Backend& backend, const Buffers& buffers) {
    return measure(backend, float_shape(Collective::kAllReduce), buffers, options);
  });
}

}  // namespace

TEST_CASE("right results have no wrong elements, in place and out of place") {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduceScatter,
                                Collective::kAllGather, Collective::kBroadcast}) {
    for (bool in_place : {false, true}) {
      for (int ranks : {1, 2, 3, 5}) {
        // Root 1 is no rank there.
        if (ranks == 1 && collective == Collective::kBroadcast) continue;
        INFO(name(collective) << " in place " << in_place << " ranks " << ranks);
        CHECK(wrong_on_ranks(Fault::kNone, collective, in_place, ranks) ==
              std::vector<uint64_t>(static_cast<size_t>(ranks), 0));
      }
    }
  }
}

TEST_CASE("every kind of fault is counted, and every rank knows the count") {
  for (bool in_place : {false, true}) {
    for (Fault fault : {Fault::kMissing, Fault::kDoubled}) {
      CHECK(wrong_on_ranks(fault, Collective::kAllReduce, in_place, 3) ==
            std::vector<uint64_t>(3, 3 * kCount));
      CHECK(wrong_on_ranks(fault, Collective::kReduceScatter, in_place, 3) ==
            std::vector<uint64_t>(3, 3 * kCount));
    }
    CHECK(wrong_on_ranks(Fault::kMisplaced, Collective::kAllReduce, in_place, 3).at(1) >
          3 * kCount * 9 / 10);
    CHECK(wrong_on_ranks(Fault::kFlipped, Collective::kAllReduce, in_place, 3) ==
          std::vector<uint64_t>(3, 1));
  }
  CHECK(wrong_on_ranks(Fault::kSpoilsInput, Collective::kAllReduce, false, 3) ==
        std::vector<uint64_t>(3, 1));
}

TEST_CASE("a measurement has the halves that were asked for, and the same numbers on every rank") {
  ThreadWorld world(2);
  const auto measured =
      measured_on_ranks(world, {.iterations = 3, .warmup = 1, .limit_from_bytes = 0});
  REQUIRE(measured[0].out_of_place.has_value());
  REQUIRE(measured[0].in_place.has_value());
  REQUIRE(measured[0].limit_us.has_value());
  CHECK(measured[0].out_of_place->time_us > 0);
  CHECK(measured[0].out_of_place->wrong == 0u);
  CHECK(measured[0].out_of_place->time_us == measured[1].out_of_place->time_us);
  CHECK(measured[0].limit_us == measured[1].limit_us);
  REQUIRE(measured[0].out_of_place->spread.has_value());
  REQUIRE(measured[1].out_of_place->spread.has_value());
  const Spread& spread = *measured[0].out_of_place->spread;
  CHECK(spread.samples == 3);
  CHECK(spread.min > 0);
  CHECK(spread.min <= spread.median);
  CHECK(spread.median <= spread.p95);
  CHECK(spread.p99 == spread.max);  // as of fewer than 100
  CHECK(spread.mean == measured[1].out_of_place->spread->mean);
}

TEST_CASE("a spread is of sorted times, its percentiles nearest ranks") {
  std::vector<double> times;
  for (int i = 200; i >= 1; --i) times.push_back(i);
  const Spread spread = spread_of(times);
  CHECK(spread.samples == 200);
  CHECK(spread.min == 1);
  CHECK(spread.median == 100.5);
  CHECK(spread.mean == 100.5);
  CHECK(spread.p95 == 190);
  CHECK(spread.p99 == 198);
  CHECK(spread.max == 200);
  const Spread one = spread_of({7});
  CHECK(one.min == 7);
  CHECK(one.p95 == 7);
  CHECK(one.max == 7);
}

TEST_CASE("several checks add up, and without one nothing is claimed") {
  ThreadWorld world(2);
  world.fault = Fault::kMissing;
  for (const Measured& measured :
       measured_on_ranks(world, {.iterations = 1, .checks = 3, .in_place = false})) {
    CHECK(measured.out_of_place->wrong == 3 * 2 * kCount);
  }
  for (const Measured& measured :
       measured_on_ranks(world, {.iterations = 1, .checks = 0, .in_place = false})) {
    CHECK_FALSE(measured.out_of_place->wrong.has_value());
    CHECK_FALSE(measured.in_place.has_value());
    CHECK_FALSE(measured.limit_us.has_value());
  }
}

TEST_CASE("the slowest rank of each batch, and the median over batches") {
  ThreadWorld world(3);
  const auto slowest = on_ranks(world, [](Backend& backend, const Buffers&) {
    const double r = backend.rank();
    return slowest_of(backend, std::vector<double>{r, 10 - r});
  });
  CHECK(slowest == std::vector<std::vector<double>>(3, {2.0, 10.0}));
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 2, 3}) == 2.5);
}

TEST_CASE("a row's time is the slowest rank's, or as nccl-tests' -a says") {
  ThreadWorld world(3);
  world.times_us = {2, 6, 1};
  const std::pair<AcrossRanks, double> expected[] = {{AcrossRanks::kFirst, 2},
                                                     {AcrossRanks::kMean, 3},
                                                     {AcrossRanks::kFastest, 1},
                                                     {AcrossRanks::kSlowest, 6}};
  for (const auto& [across, time_us] : expected) {
    INFO(kTimeOf[static_cast<size_t>(across)]);
    for (const Measured& measured :
         measured_on_ranks(world, {.iterations = 3, .across = across, .in_place = false})) {
      CHECK(measured.out_of_place->time_us == time_us);
    }
  }
  CHECK(MeasureOptions{}.across == AcrossRanks::kSlowest);
}

TEST_CASE("the streaming probe copies what both sides have and stays inside both") {
  for (size_t reads : {0u, 16u, 100u, 640u, 1024u}) {
    for (size_t writes : {0u, 64u, 256u, 1024u}) {
      INFO(reads << " " << writes);
      alignas(64) std::byte in[1024], out[1024 + 16];
      std::memset(in, 0x11, sizeof(in));
      std::memset(out, 0x22, sizeof(out));
      stream(in, out, {.reads = reads, .writes = writes});
      const size_t both = std::min(reads, writes) / 64 * 64;
      CHECK(std::memcmp(in, out, both) == 0);
      for (size_t i = writes; i < sizeof(out); ++i) REQUIRE(out[i] == std::byte{0x22});
    }
  }
}
