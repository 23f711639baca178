// LL walked on the host: data and flag in one store, for every type and operator, compared with the
// bits of a fold in rank order; many operations in a row over the same two areas; and what happens
// to a rank that polls for a line that does not come.
#include <thread>
#include <vector>

#include "tests/comm/device/device_walk.hpp"
#include "tests/comm/engine/typed_calls.hpp"

namespace rondo::engine {
namespace {

using namespace test;

constexpr auto kChannels = static_cast<uint32_t>(kLimits.channels);

transport::cuda_ipc::SegmentSizes ll_shape(uint32_t ranks, size_t area_bytes = kAreaBytes) {
  transport::cuda_ipc::SegmentSizes shape = shape_of(ranks);
  shape.ll_bytes = area_bytes;
  return shape;
}

// All of them one after the other in one world.
void check_all(World& world, const std::vector<TypedCase>& cases, uint32_t block_threads) {
  const uint32_t ranks = world.shape().ranks;
  std::vector<TypedCall> calls;
  std::vector<std::vector<Launch>> launches;
  calls.reserve(cases.size());
  for (const TypedCase& c : cases) {
    calls.emplace_back(c, ranks);
    launches.push_back(calls.back().launches());
  }
  walk(world, launches, all_ranks(ranks), block_threads);
  CHECK(all_well(world));
  for (size_t i = 0; i < calls.size(); ++i) {
    INFO(ranks << " ranks, operation " << i << ": " << describe(cases[i]));
    CHECK(calls[i].right());
  }
}

TEST_CASE("LL reduces every type by every operator to the bits of a fold in rank order") {
  for (const uint32_t ranks : numbers_of_ranks()) {
    World world(ll_shape(ranks));
    check_all(world, every_kernel(Algorithm::kOneShot, Protocol::kLl, kChannels * kAreaBytes), 1);
  }
}

TEST_CASE("Blocks of several threads do so too, and in pieces where the block's memory is small") {
  for (const uint32_t ranks : {2u, 3u, 7u}) {
    if (testing::kSanitized && ranks == 7) continue;
    constexpr size_t kLarge = 8192;  // of each rank, in a channel: more than a piece at 3 ranks
    World world(ll_shape(ranks, kLarge));
    std::vector<TypedCase> cases;
    for (const DataType type : {DataType::kUint8, DataType::kFloat32, DataType::kBFloat16}) {
      for (const size_t bytes : {size_t{2} * kLarge, size_t{2} * kLarge - 56, size_t{600}}) {
        for (const bool in_place : {false, true}) {
          cases.push_back({.type = type,
                           .count = bytes / size_of(type) - 1,
                           .in_place = in_place,
                           .seed = cases.size(),
                           .area_bytes = kLarge});
        }
      }
    }
    check_all(world, cases, 3);
  }
}

TEST_CASE("LL gathers, and holds everybody up at a barrier") {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
    World world(ll_shape(ranks));
    std::vector<TypedCase> cases;
    for (const size_t count : {1, 7, 100, 2 * 192}) {
      for (const bool in_place : {false, true}) {
        cases.push_back({.collective = Collective::kAllGather,
                         .type = DataType::kUint8,
                         .count = count,
                         .in_place = in_place,
                         .seed = cases.size()});
        if (ranks == 1) continue;  // a barrier of one rank moves nothing
        cases.push_back({.collective = Collective::kBarrier, .type = DataType::kUint8, .count = 1});
      }
    }
    check_all(world, cases, 1);
  }
}

// Two areas, and nothing that says they are free: that they are follows from what was read.
TEST_CASE("Many operations by LL in a row do not overtake each other") {
  for (const uint32_t ranks : numbers_of_ranks()) {
    World world(ll_shape(ranks));
    std::vector<TypedCase> cases;
    for (size_t i = 0; i < 300; ++i) {
      cases.push_back({.type = DataType::kUint64, .count = 1 + i * 7 % 48, .seed = i});
    }
    check_all(world, cases, 1 + ranks % 2);
  }
}

TEST_CASE("By slots and in place, the bits are those of a fold in rank order, too") {
  for (const uint32_t ranks : {2u, 3u}) {
    if (testing::kSanitized && ranks == 2) continue;
    World world(ll_shape(ranks));
    for (const Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot,
                                      Algorithm::kOneShotDirect, Algorithm::kTwoShotDirect}) {
      check_all(world, every_kernel(algorithm, Protocol::kSimple, 300), 1);
    }
  }
}

TEST_CASE("Operations by LL and by slots follow each other in any order") {
  for (const uint32_t ranks : {2u, 3u, 5u}) {
    if (testing::kSanitized && ranks == 5) continue;
    World world(ll_shape(ranks));
    std::vector<Call> by_slots = everything(ranks, {1, 40});
    std::vector<TypedCall> by_ll;
    by_ll.reserve(by_slots.size());
    std::vector<std::vector<Launch>> launches;
    for (size_t i = 0; i < by_slots.size(); ++i) {
      by_ll.emplace_back(TypedCase{.type = DataType::kUint32, .count = 1 + i % 90, .seed = i},
                         ranks);
      if (i % 3 != 0) launches.push_back(by_ll[i].launches());
      launches.push_back(launches_of(by_slots[i], kNever, false));
      if (i % 3 == 0) launches.push_back(by_ll[i].launches());
    }
    walk(world, launches, all_ranks(ranks), 1);
    CHECK(all_well(world));
    check_results(by_slots);
    for (size_t i = 0; i < by_ll.size(); ++i) {
      INFO("before or after " << by_slots[i].name);
      CHECK(by_ll[i].right());
    }
  }
}

void jump(World& world, uint64_t by_ll) {
  for (uint32_t r = 0; r < world.shape().ranks; ++r) {
    for (uint32_t c = 0; c < world.shape().channels; ++c) world.state(r, c).by_ll = by_ll;
  }
}

TEST_CASE("Lines of a flag's last turn are not taken for new ones") {
  World world(ll_shape(3));
  const TypedCase large = {.type = DataType::kUint8, .count = kChannels * kAreaBytes};
  const TypedCase small = {.type = DataType::kUint8, .count = kChannels * 64};
  check_all(world, {large, large}, 1);
  // Operations that clear: the first halves of their areas have other lines since.
  jump(world, kLlNumbers / 2 - 1);
  check_all(world, {small, small}, 1);
  // The numbers of the first two come again, and a rank waits for lines that have not come.
  jump(world, kLlNumbers);
  TypedCase waits = large;
  waits.limit_ns = 100;
  TypedCall call(waits, 3);
  walk(world, {call.launches()}, {0},
       3);  // several threads: not only the first lines are looked at
  for (uint32_t c = 0; c < kChannels; ++c) {
    CHECK(world.report(0, c).ended != DeviceReport::kMismatch);
    CHECK(world.report(0, c).ended != DeviceReport::kNot);
  }
}

TEST_CASE("A rank whose lines do not come is named when the limit has passed") {
  for (const uint32_t block_threads : {1u, 3u}) {
    World world(ll_shape(2));
    TypedCall call({.count = 90, .limit_ns = 100}, 2);
    walk(world, {call.launches()}, {0}, block_threads);
    check_names_rank_1(world);
  }
}

TEST_CASE("A rank that polls for lines gives up when another one has") {
  World world(ll_shape(3));
  TypedCall first({.count = 90}, 3), second({.count = 90}, 3);
  world.abort(1);
  walk(world, {first.launches(), second.launches()}, {0, 1}, 2);
  for (const uint32_t r : {0u, 1u}) {
    for (uint32_t c = 0; c < kChannels; ++c) {
      CHECK(world.report(r, c).ended == DeviceReport::kAborted);
      CHECK(world.report(r, c).epoch == 1);
    }
  }
}

TEST_CASE("Ranks whose operations by LL differ notice it") {
  World world(ll_shape(2));
  TypedCall one({.count = 90, .fingerprint = 1}, 2), other({.count = 90, .fingerprint = 2}, 2);
  std::thread peer([&] { walk(world, {other.launches()}, {1}, 1); });
  walk(world, {one.launches()}, {0}, 1);
  peer.join();
  check_disagreement(world);
}

TEST_CASE("What does not fit an area, or is not from everybody to everybody, does not go by LL") {
  const auto fits = [](Collective collective, Algorithm algorithm, uint64_t count) {
    const schedule::Limits limits = ll_limits(4, kLimits.channels, kAreaBytes);
    const schedule::LoweredOperation operation = schedule::test::operation(
        {.collective = collective, .algorithm = algorithm, .ranks = 3, .count = count}, limits);
    return algorithms::may_go_by_ll(collective, algorithm) &&
           fits_ll(operation.programs[0], 4, kAreaBytes);
  };
  constexpr uint64_t kMost = kLimits.channels * kAreaBytes / 4;
  CHECK(fits(Collective::kAllReduce, Algorithm::kOneShot, 0));
  CHECK(fits(Collective::kAllReduce, Algorithm::kOneShot, kMost));
  CHECK_FALSE(fits(Collective::kAllReduce, Algorithm::kOneShot, kMost + 1));
  CHECK(fits(Collective::kAllGather, Algorithm::kOneShot, kMost));
  CHECK_FALSE(fits(Collective::kBroadcast, Algorithm::kOneShot, 1));
  CHECK_FALSE(fits(Collective::kAllGatherV, Algorithm::kOneShot, 1));
  CHECK_FALSE(fits(Collective::kAllReduce, Algorithm::kOneShotDirect, 1));
}

}  // namespace
}  // namespace rondo::engine
