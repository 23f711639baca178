// What a GPU walks, walked on the host: the device engine with threads as blocks, and with several
// threads in a block, over the very programs, layout and counters that the kernel uses. Every
// collective by every algorithm, many operations in a row over the same memory; then what it does
// when a peer is missing, gives up or disagrees.
#include "tests/comm/device/device_walk.hpp"

#include <algorithm>
#include <thread>
#include <vector>

namespace rondo::engine {
namespace {

using namespace test;

void walk(World& world, std::vector<Call>& calls, const std::vector<uint32_t>& ranks,
          uint32_t block_threads, uint64_t limit_ns = kNever, bool scaled = false) {
  std::vector<std::vector<Launch>> launches;
  for (Call& call : calls) launches.push_back(launches_of(call, limit_ns, scaled));
  test::walk(world, launches, ranks, block_threads);
}

void walk_everything(uint32_t ranks, uint32_t block_threads, const std::vector<uint64_t>& counts) {
  World world(shape_of(ranks));
  std::vector<Call> calls = everything(ranks, counts);
  walk(world, calls, all_ranks(ranks), block_threads);
  CHECK(all_well(world));
  check_results(calls);
}

/// Rank 1 has the same operation with another fingerprint. Returns both ranks' calls, rank 0's first.
std::vector<std::vector<Call>> disagree(World& world, const Call& call) {
  std::vector<std::vector<Call>> calls = {{call}, {call}};
  calls[1][0].fingerprint = 2;
  std::thread other([&] { walk(world, calls[1], {1}, 1); });
  walk(world, calls[0], {0}, 1);
  other.join();
  return calls;
}

}  // namespace

TEST_CASE("Blocks of one thread do every collective by every algorithm, one after the other") {
  for (const uint32_t ranks : numbers_of_ranks()) {
    DYNAMIC_SECTION(ranks << " ranks") { walk_everything(ranks, 1, {0, 1, 7, 200}); }
  }
}

TEST_CASE("Blocks of several threads do the same") {
  for (const uint32_t ranks : {2u, 3u}) {
    if (testing::kSanitized && ranks == 2) continue;
    DYNAMIC_SECTION(ranks << " ranks") { walk_everything(ranks, 3, {5, 150}); }
  }
}

TEST_CASE("A program that does not fit into a block's memory is walked where it is") {
  constexpr uint32_t kRanks = 32;
  schedule::Limits limits = kLimits;
  limits.channels = 1;
  World world(shape_of(kRanks, limits));
  std::vector<Call> calls;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTwoShot}) {
    calls.push_back(call_of({.collective = Collective::kAllReduce,
                             .algorithm = algorithm,
                             .ranks = kRanks,
                             .count = 700},
                            limits));
    const schedule::Program& program = calls.back().operation.programs[0];
    CHECK(program.instructions.size() * sizeof(schedule::Instruction) +
              program.operands.size() * sizeof(schedule::Location) >
          BlockShared::kProgramBytes);
  }
  walk(world, calls, all_ranks(kRanks), 1);
  CHECK(all_well(world));
  check_results(calls);
}

TEST_CASE("A scaled sum multiplies every rank's input by that rank's factor, however it is read") {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u}) {
    World world(shape_of(ranks));
    std::vector<Call> calls;
    for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
      calls.push_back(all_reduce(algorithm, static_cast<int>(ranks)));
    }
    walk(world, calls, all_ranks(ranks), 1, kNever, true);
    for (Call& call : calls) {
      for (size_t i = 0; i < call.expectation().out_size(0); ++i) {
        uint64_t sum = 0;
        for (uint32_t r = 0; r < ranks; ++r) {
          sum += static_cast<uint64_t>(factor_of(r)) * call.in(r)[i];
        }
        for (uint32_t r = 0; r < ranks; ++r) REQUIRE(call.out(r)[i] == sum);
      }
    }
  }
}

TEST_CASE("A store that tells peers of data without a fence is noticed") {
  uint64_t data = 0, word = 0;
  HostAccess::write(data, uint64_t{1});
  HostAccess::store(&word, 1);
  CHECK(unordered_stores.exchange(0) == 1);
  HostAccess::order(false);
  HostAccess::store(&word, 2);
  CHECK(unordered_stores == 0);
}

// As a replayed graph brings them: nothing is told again, the counters go on from where they are.
TEST_CASE("The same operations again are new ones") {
  World world(shape_of(3));
  std::vector<Call> calls;
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kOneShot, Algorithm::kTwoShotDirect}) {
    calls.push_back(all_reduce(algorithm, 3));
  }
  for (uint64_t replay = 1; replay <= 3; ++replay) {
    walk(world, calls, all_ranks(3), 1);
    for (uint32_t r = 0; r < 3; ++r) {
      CHECK(world.report(r, 1).ended == DeviceReport::kNot);
      CHECK(world.state(r, 1).epoch == replay * calls.size());
      for (Call& call : calls) {
        const Expectation e = call.expectation();
        CHECK(e.right(r, call.out(r)));
        std::fill_n(call.out(r), e.out_size(r), 0xbad);
      }
    }
  }
}

TEST_CASE("A rank that never comes is named when the limit has passed") {
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kTwoShot, Algorithm::kOneShot, Algorithm::kTwoShotDirect}) {
    INFO(name(algorithm));
    World world(shape_of(2));
    std::vector<Call> calls = {all_reduce(algorithm, 2)};
    walk(world, calls, {0}, 2, 100);
    check_names_rank_1(world, is_direct(algorithm) ? DeviceReport::kPost : DeviceReport::kSlot);
  }
}

TEST_CASE("When one rank gives up, all do, and no later operation begins") {
  World world(shape_of(3));
  std::vector<Call> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(all_reduce(Algorithm::kRing, 3));
  world.abort(1);
  walk(world, calls, {0, 1}, 1);  // both wait for rank 2, and so look round
  walk(world, calls, {2}, 1);
  for (uint32_t r = 0; r < 3; ++r) {
    for (uint32_t c = 0; c < 2; ++c) {
      CHECK(world.report(r, c).ended == DeviceReport::kAborted);
      CHECK(world.report(r, c).epoch == 1);  // the first
      CHECK(world.state(r, c).epoch == 3);
    }
    for (Call& call : calls) CHECK_FALSE(call.expectation().right(r, call.out(r)));
  }
}

TEST_CASE("Ranks that disagree notice it, and nobody hangs") {
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kTwoShotDirect}) {
    INFO(name(algorithm));
    World world(shape_of(2));
    auto calls = disagree(world, all_reduce(algorithm, 2));
    check_disagreement(world);
    if (!is_direct(algorithm)) continue;
    // Buffers of another operation, which may be shorter, are not touched.
    for (std::vector<Call>& each : calls) {
      for (uint32_t r = 0; r < 2; ++r) {
        CHECK(std::count(each[0].out(r), each[0].out(r) + 500, kUntouched) == 500);
      }
    }
  }
  INFO("a barrier by signals");
  World world(shape_of(2));
  (void)disagree(world, call_of({.collective = Collective::kBarrier,
                                 .algorithm = Algorithm::kFlat,
                                 .ranks = 2,
                                 .count = 1}));
  check_disagreement(world);
}

// Every place of a segment belongs to one thing alone.
TEST_CASE("The layout's parts do not overlap, and end where the segment ends") {
  for (const transport::cuda_ipc::SegmentSizes& shape :
       {shape_of(1), shape_of(5),
        transport::cuda_ipc::SegmentSizes{.ranks = 3,
        .channels = 4,
        .depth = 3,
        .slot_bytes = 1000,
        .publish_depth = 0,
        .publish_slot_bytes = 0,
        .ll_bytes = 200}}) {
    const transport::cuda_ipc::SegmentLayout layout(shape);
    std::vector<int> owners(layout.bytes());
    const auto claim = [&](size_t offset, size_t bytes) {
      REQUIRE(offset % kLine == 0);
      REQUIRE(offset + bytes <= layout.bytes());
      for (size_t b = offset; b < offset + bytes; ++b) ++owners[b];
    };
    using namespace transport::cuda_ipc;
    claim(layout.abort(), sizeof(AbortLine));
    for (uint32_t c = 0; c < shape.channels; ++c) {
      claim(layout.state(c), sizeof(StateLine));
      for (uint32_t r = 0; r < shape.ranks; ++r) {
        claim(layout.peer(c, r), sizeof(PeerLine));
        claim(layout.inbox(c, r), sizeof(InboxLine) + shape.depth * sizeof(SlotHeader));
        claim(layout.notice(c, r), sizeof(InboxLine) + shape.publish_depth * sizeof(SlotHeader));
        claim(layout.outbox(c, r), sizeof(OutboxLine));
        for (uint32_t i = 0; i < shape.depth; ++i) claim(layout.slot(c, r, i), shape.slot_bytes);
      }
      for (uint32_t r = 0; r < 2 * shape.ranks; ++r) {
        claim(layout.ll(c, r / 2, r % 2), 2 * shape.ll_bytes);
      }
      for (uint32_t i = 0; i < shape.publish_depth; ++i) {
        claim(layout.published_slot(c, i), shape.publish_slot_bytes);
      }
    }
    for (const int count : owners) REQUIRE(count <= 1);
  }
}

}  // namespace rondo::engine
