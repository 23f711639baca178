// Reduce-scatters over the links between each host's GPUs, on hosts that are pretended: their pieces,
// the scratch memory that all of them use, and what becomes of it when something goes wrong.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/staged_world.hpp"

namespace rondo::device::test {
namespace {

constexpr size_t kScratch = 1600;  // 200 integers of each of two hosts, or pieces of 192
constexpr size_t kPiece = 192;

Call scatter_of(size_t count, bool in_place = false) {
  return {.collective = Collective::kReduceScatter, .count = count, .in_place = in_place};
}

/// The buffers of all ranks: [call][rank].
using AllBuffers = std::vector<std::vector<Buffers>>;

AllBuffers buffers_for(const std::vector<Call>& calls, int size) {
  AllBuffers all(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < size; ++rank) all[i].emplace_back(calls[i], rank, size);
  }
  return all;
}

void check_equal(const AllBuffers& found, const AllBuffers& wanted) {
  for (size_t i = 0; i < found.size(); ++i) {
    for (size_t rank = 0; rank < found[i].size(); ++rank) {
      INFO("call " << i << ", rank " << rank);
      CHECK((found[i][rank].memory() == wanted[i][rank].memory()));
    }
  }
}

/// All ranks' calls by this thread, rank by rank, in a group each. The first refusal.
Status issue_groups(World& world, const std::vector<Call>& calls, AllBuffers& buffers) {
  Status first;
  for (int rank = 0; rank < world.size(); ++rank) {
    Communicator& c = world[rank];
    REQUIRE(c.group_start().ok());
    for (size_t i = 0; i < calls.size(); ++i) {
      (void)issue(c, calls[i], buffers[i][static_cast<size_t>(rank)], world.on_stream(rank));
    }
    const Status status = c.group_end();
    if (first.ok()) first = status;
  }
  world.synchronize();
  return first;
}

TEST_CASE("Over hosts with several GPUs, reduce-scatters over links give what the host's give") {
  for (const std::vector<int>& hosts : std::vector<std::vector<int>>{
           {0, 0, 1, 1}, {0, 1, 1, 0}, {0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}}) {
    const Pretended pretended(hosts);
    const auto size = static_cast<int>(hosts.size());
    for (const size_t staging_bytes : {kMuch, kScratch}) {
      INFO(size << " ranks, staged through " << staging_bytes << " bytes");
      const auto gpu = gpus(staging_bytes);
      const Installed installed(gpu);
      World world(gpu, size, hierarchical());
      REQUIRE(world.all_created());
      std::vector<Call> calls;
      for (const size_t count : {0, 1, 31, 301}) {
        for (const bool in_place : {false, true}) {
          calls.push_back(scatter_of(count, in_place));
          if (count % 2 == 1) calls.back().type = DataType::kFloat32;
          if (count == 31) calls.back().op = ReduceOp::kMax;
        }
      }
      compare(world, calls);
      CHECK(gpu->launches > 0);
      if (staging_bytes == kMuch) CHECK(world[0].stats().operations == calls.size());
    }
  }
}

TEST_CASE(
    "Over hosts with several GPUs, what scratch memory does not hold is scattered in pieces") {
  struct Pieces {
    size_t count;
    int pieces;  // 0: staged as a whole
  };
  for (const bool is_consecutive : {true, false}) {
    const Pretended pretended(is_consecutive ? std::vector{0, 0, 1, 1} : std::vector{0, 1, 1, 0});
    const auto gpu = gpus(kScratch);
    const Installed installed(gpu);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    for (const auto& [count, pieces] : std::vector<Pieces>{{200, 1},
                                                           {201, 2},
                                                           {2 * kPiece, 2},
                                                           {2 * kPiece + 1, 3},
                                                           {64 * kPiece, 64},
                                                           {64 * kPiece + 1, 0}}) {
      for (const bool in_place : {false, true}) {
        const bool is_large = count > 1000;
        if (is_large && !is_consecutive) continue;
        INFO(count << " elements");
        const int before = gpu->launches;
        compare(world, {scatter_of(count, in_place)});
        CHECK(gpu->launches - before == 4 * pieces);
      }
    }
  }
}

TEST_CASE("Over hosts with several GPUs, reduce-scatters in groups keep their order") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(kScratch);
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  std::vector<Call> calls;
  for (const size_t count : {200, 500, 7, 0, 193}) {
    calls.push_back(scatter_of(count, count == 500));
    calls.push_back({.collective = Collective::kAllReduce, .count = count});
    calls.push_back({.collective = Collective::kReduce, .count = count, .root = 3});
  }
  AllBuffers found = buffers_for(calls, 4);
  const Status status = issue_groups(world, calls, found);
  INFO(status.to_string());
  REQUIRE(status.ok());
  check_all_ok(world);
  check_equal(found, on_host(calls, 4));
}

TEST_CASE("Over hosts with several GPUs, a group of too many pieces is refused") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(kScratch);
  SECTION("because of launches") {
    const Installed installed(gpu);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    const std::vector<Call> most(4, scatter_of(64 * kPiece));
    AllBuffers found = buffers_for(most, 4);
    const Status status = issue_groups(world, most, found);
    INFO(status.to_string());
    REQUIRE(status.ok());
    check_equal(found, on_host(most, 4));
    std::vector<Call> more = most;
    more.push_back(scatter_of(1));
    AllBuffers untouched = buffers_for(more, 4);
    const Status refused = issue_groups(world, more, untouched);
    CHECK(refused.code() == Code::kInvalidArgument);
    says(refused, "a group of 5 operations and 0 messages, which are up to 258 launches");
    check_all_ok(world);
    compare(world, {scatter_of(300)});
  }
  SECTION("because of programs") {
    const Installed installed(gpu, 16384);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    // Of one operation they take the place of the last one's.
    for (int i = 0; i < 5; ++i) compare(world, {scatter_of(4 * kPiece)});
    const std::vector<Call> many(12, scatter_of(4 * kPiece));
    AllBuffers untouched = buffers_for(many, 4);
    const Status full = issue_groups(world, many, untouched);
    CHECK(full.code() == Code::kResourceExhausted);
    says(full, "the programs of a group of 12 operations");
  }
}

TEST_CASE("Over hosts with several GPUs, reduce-scatters of several streams take turns") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(kScratch);
  const Installed installed(gpu);
  // The first copy of sums is slow. If the next call's kernels did not wait, they would overwrite these.
  std::atomic<bool> has_begun{false};
  gpu->before_copy = [&](const std::byte* /*to*/, const std::byte* from) {
    const auto memory = gpu->allocation_of(from);
    if (!memory.ok() || memory->bytes != kScratch || has_begun.exchange(true)) return;
    for (int i = 0; i < 100; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  std::vector<Call> calls;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    calls.push_back(scatter_of(200));
    calls.back().op = op;
  }
  AllBuffers found = buffers_for(calls, 4);
  std::vector<Stream> second;
  for (int rank = 0; rank < 4; ++rank) {
    second.push_back(*gpu->create_stream());
    for (size_t i = 0; i < calls.size(); ++i) {
      CallOptions options = world.on_stream(rank);
      if (i % 2 == 1) options.stream = second.back();
      REQUIRE(issue(world[rank], calls[i], found[i][static_cast<size_t>(rank)], options).ok());
    }
  }
  world.synchronize();
  for (Stream stream : second) {
    gpu->drain(stream);
    REQUIRE(gpu->destroy_stream(stream).ok());
  }
  check_all_ok(world);
  CHECK(has_begun);
  check_equal(found, on_host(calls, 4));
}

TEST_CASE("Over hosts with several GPUs, plans of reduce-scatters say what they send") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(kScratch);
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  for (const size_t count : {kPiece, 10 * kPiece, 10 * kPiece + 100}) {
    INFO(count << " elements");
    const Plan plan = world[0].plan(Collective::kReduceScatter, count, DataType::kInt32);
    CHECK(plan.algorithm == Algorithm::kHierarchical);
    CHECK(plan.predicted_us > 0);
    const uint64_t before = world[0].stats().bytes_sent;
    compare(world, {scatter_of(count)});
    // To the other rank of its host, and to the other host.
    CHECK(world[0].stats().bytes_sent - before == (2 + 1) * count * sizeof(int32_t));
    CHECK(plan.bytes_sent_per_rank == (2 + 1) * count * sizeof(int32_t));
  }
}

TEST_CASE("Over hosts with several GPUs, a GPU without room for scratch memory has all staged") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(kScratch);
  std::atomic<int> refused{0};
  gpu->has_room = [&refused](size_t bytes, int device) {
    const bool fits = bytes != kScratch || device != 1;
    refused += !fits;
    return fits;
  };
  {
    const Installed installed(gpu);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    CHECK(refused == 2);
    compare(world, {scatter_of(300)});
    CHECK(gpu->launches == 0);
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Over hosts with several GPUs, an abort ends reduce-scatters, and every stream goes on") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(kScratch);
  const std::vector<Call> calls(3, scatter_of(10 * kPiece));
  {
    const Installed installed(gpu);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    AllBuffers buffers = buffers_for(calls, 4);
    const auto issue_to = [&](int rank, size_t i) {
      return issue(world[rank], calls[i], buffers[i][static_cast<size_t>(rank)],
                   world.on_stream(rank));
    };
    // Rank 0's kernel waits for rank 1's, and rank 2's sums for rank 0's.
    for (const int rank : {0, 2, 3}) {
      for (size_t i = 0; i < calls.size(); ++i) REQUIRE(issue_to(rank, i).ok());
    }
    CHECK_FALSE(gpu->idle(world.stream(0)));
    world[1].abort("enough");
    world.synchronize();
    for (int rank = 0; rank < 4; ++rank) {
      testing::await("the error is known", [&] { return !world[rank].status().ok(); });
      CHECK(world[rank].status().code() == Code::kAborted);
      says(world[rank].status(), "rank 1 aborted: enough");
      CHECK(issue_to(rank, 0).code() == Code::kAborted);
    }
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Over hosts with several GPUs, counts that differ in a reduce-scatter are named") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(kScratch);
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  const std::vector<Call> calls = {scatter_of(2 * kPiece), scatter_of(3 * kPiece)};
  AllBuffers buffers = buffers_for(calls, 4);
  for (int rank = 0; rank < 4; ++rank) {
    const size_t i = rank == 3 ? 1 : 0;
    REQUIRE(
        issue(world[rank], calls[i], buffers[i][static_cast<size_t>(rank)], world.on_stream(rank))
            .ok());
  }
  world.synchronize();
  for (int rank = 0; rank < 4; ++rank) {
    testing::await("the error is known", [&] { return !world[rank].status().ok(); });
    CHECK(world[rank].status().code() == Code::kMismatch);
    says(world[rank].status(), "rank 3");
    says(world[rank].status(), "count 576");
  }
}

TEST_CASE("Over hosts with several GPUs, failing calls of CUDA end reduce-scatters with errors") {
  const Pretended pretended({0, 0, 1, 1});
  const std::vector<Call> calls = {scatter_of(2 * kPiece)};
  const AllBuffers wanted = on_host(calls, 4);
  bool reached = true;
  // By steps that grow: every call would be thousands of worlds.
  for (int fail_at = -1; reached; fail_at += 23 + fail_at / 2) {
    const auto gpu = gpus(kScratch);
    gpu->fail_at = fail_at;
    bool told = false, right = true;
    {
      const Installed installed(gpu);
      World world(gpu, 4, hierarchical());
      for (int rank = 0; rank < 4; ++rank) told = told || !world.created(rank).ok();
      if (world.all_created()) {
        AllBuffers found = buffers_for(calls, 4);
        for (int rank = 0; rank < 4; ++rank) {
          Buffers& own = found[0][static_cast<size_t>(rank)];
          told = !issue(world[rank], calls[0], own, world.on_stream(rank)).ok() || told;
        }
        world.synchronize();
        for (int rank = 0; rank < 4; ++rank) {
          const auto r = static_cast<size_t>(rank);
          told = told || !world[rank].status().ok();
          right = right && found[0][r].memory() == wanted[0][r].memory();
        }
      }
    }
    INFO("call " << fail_at << " of " << gpu->calls);
    CHECK(gpu->alive() == 0);
    CHECK((told || right));
    reached = fail_at < gpu->calls;
  }
}

}  // namespace
}  // namespace rondo::device::test
