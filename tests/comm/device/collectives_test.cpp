// Collectives of a communicator on a device, as a user calls them, against those of the host; and
// how they are enqueued: in the order of streams, in graphs, without waiting for anybody.
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/comm/device/calls.hpp"
#include "tests/comm/schedule/operations.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("On a device, every collective gives what it gives on the host") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      Rig world(size, {.gpu = gpus()});
      compare(world, every_collective(size));
      CHECK(world[0].stats().operations == every_collective(size).size());
    }
  }
}

TEST_CASE("GPUs that cannot reach each other meet in host memory") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      const Setup setup = {.gpu = gpus(3)};
      setup.gpu->peers = {{0, 1}, {1, 0}};  // the third one stands apart
      Rig world(size, setup);
      // Nothing that touches peers' buffers may be chosen.
      const bool apart = size > 2;
      for (size_t count = 1; apart && count <= size_t{1} << 26; count *= 4) {
        INFO(count);
        CHECK_FALSE(
            is_direct(world[0].plan(Collective::kAllReduce, count, DataType::kInt32).algorithm));
      }
      compare(world, every_collective(size));
      CHECK(world.gpu->enabled.empty() == (apart || size == 1));
      CHECK(world.gpu->most_mapped == (apart ? 2U : 1U));
    }
  }
}

TEST_CASE("Buffers that other GPUs cannot access go through slots, on all ranks alike") {
  Rig world(3, {.gpu = gpus(), .config = roomy_config()});
  std::vector<Call> calls;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather}) {
    for (size_t count = 1; count <= size_t{1} << 16; count *= 16) {
      if (!is_direct(world[0].plan(collective, count, DataType::kInt32).algorithm)) continue;
      calls.insert(calls.end(), 4, {.collective = collective, .count = count});
    }
  }
  REQUIRE(calls.size() >= 8);
  auto found = buffers_of(calls, 3);
  const auto address = [&](size_t i, int rank) {
    return static_cast<const std::byte*>(found[i][rank].in());
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    // Of one call in two, in turn: one rank's In, which is the root's, and another's Out.
    if (i % 4 == 1) world.gpu->not_for_peers.insert(address(i, 0));
    if (i % 4 == 2) world.gpu->not_for_peers.insert(static_cast<std::byte*>(found[i][1].out()));
  }
  issue_all(world, calls, found);
  check_all(world, calls, found, on_host(calls, 3));
  const std::set<const std::byte*> told = world.gpu->told();
  for (size_t i = 0; i < calls.size(); ++i) {
    // Peers read In of an all-reduce and of a broadcast's root, and write into Out of the others.
    const bool staged = (i % 4 == 1 && calls[i].collective != Collective::kAllGather) ||
                        (i % 4 == 2 && calls[i].collective != Collective::kBroadcast);
    for (int rank = 0; rank < 3 && staged; ++rank) {
      INFO(calls[i].to_string() << ", call " << i << ", rank " << rank);
      CHECK(told.count(address(i, rank)) == 0);
    }
  }
  // The last operation is direct.
  CHECK(told.count(address(calls.size() - 1, 0)) == 1);

  // One whose algorithm is forced cannot do without.
  Ints data(4096);
  world.gpu->not_for_peers.insert(reinterpret_cast<std::byte*>(data.data()));
  check_failed(sum(world[1], data, world.on_stream(1, Algorithm::kTwoShotDirect)),
               Code::kUnavailable, {"one of rank 1's comes from a pool"});
}

TEST_CASE("On a device, an all-reduce by every algorithm, of every type") {
  Rig world(3);
  std::vector<Call> calls;
  for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
    calls.push_back({.collective = Collective::kAllReduce, .count = 500, .algorithm = algorithm});
    // The host has references to library memory only between processes; these ranks are threads.
    calls.push_back({.collective = Collective::kAllReduce,
                     .count = 33,
                     .type = DataType::kFloat32,
                     .op = ReduceOp::kMulSum,
                     .algorithm = algorithm});
  }
  for (int type = 0; type < kDataTypes; ++type) {
    calls.push_back({.collective = Collective::kAllReduce,
                     .count = 100,
                     .type = static_cast<DataType>(type),
                     .op = ReduceOp::kMin,
                     .algorithm = Algorithm::kRing});
  }
  compare(world, calls);
}

TEST_CASE("Fences end at the GPU where all ranks are on one") {
  for (const int devices : {1, 2}) {
    Rig world(3, {.gpu = gpus(devices)});
    compare(world, {{.collective = Collective::kAllReduce, .count = 100}});
    CHECK(world.gpu->launches_on_one_gpu == (devices == 1 ? 3 : 0));
  }
}

TEST_CASE("On a device, an all-to-all leaves the blocks of a rank in place until they are read") {
  Rig world(3);
  // Ranks do not tell each other whether they are in place.
  for (size_t count = 1; count <= size_t{1} << 26; count *= 2) {
    INFO(count);
    CHECK(world[0].plan(Collective::kAllToAll, count, DataType::kInt32).algorithm !=
          Algorithm::kTwoShotDirect);
  }
  compare(world, {{.collective = Collective::kAllToAll, .count = 20000, .in_place = true}});
}

/// How many of the ranks' launches for this call went by LL; its results are right in any case.
int launches_by_ll(Rig& world, const Call& call) {
  const int before = world.gpu->launches_by_ll;
  compare(world, {call});
  return world.gpu->launches_by_ll - before;
}

TEST_CASE("On a device, small one-shot operations from everybody to everybody go by LL") {
  Rig world(3);
  const auto by_ll = [&](Collective collective, size_t count, Algorithm algorithm) {
    return launches_by_ll(world,
                          {.collective = collective, .count = count, .algorithm = algorithm});
  };
  CHECK(by_ll(Collective::kAllReduce, 7, Algorithm::kOneShot) == 3);
  CHECK(by_ll(Collective::kAllReduce, 7, Algorithm::kAuto) == 3);
  CHECK(by_ll(Collective::kAllReduce, 128, Algorithm::kOneShot) == 3);  // two channels of 256 bytes
  CHECK(by_ll(Collective::kAllReduce, 129, Algorithm::kOneShot) == 0);
  CHECK(by_ll(Collective::kAllReduce, 7, Algorithm::kRing) == 0);
  CHECK(by_ll(Collective::kAllGather, 5, Algorithm::kOneShot) == 3);
  CHECK(by_ll(Collective::kBroadcast, 5, Algorithm::kAuto) == 0);
}

TEST_CASE("Of slots of the usual size LL carries 16 KiB a block, among more than four ranks 8") {
  Config config = small_config();
  config.slots = 0;
  config.slot_bytes = 0;
  for (const auto& [ranks, most] : {std::pair<int, size_t>{4, 16 << 10}, {5, 8 << 10}}) {
    Rig world(ranks, {.config = config});
    const size_t fits = 2 * most / sizeof(float);  // two channels
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMulSum}) {
      for (const size_t count : {fits, fits + 1}) {
        INFO(ranks << " ranks, " << count << " floats, " << name(op));
        CHECK(launches_by_ll(world, {.collective = Collective::kAllReduce,
                                     .count = count,
                                     .type = DataType::kFloat32,
                                     .op = op,
                                     .algorithm = Algorithm::kOneShot}) ==
              (count == fits ? ranks : 0));
      }
    }
  }
}

TEST_CASE("What a stream holds before and after an operation is done before and after it") {
  Rig world(2);
  FakeGpu& gpu = *world.gpu;
  Ints sources[2] = {Ints(100, 3), Ints(100, 4)};
  Ints in[2], out[2], kept[2];
  for (Ints* const each : {in, out, kept}) {
    for (int rank = 0; rank < 2; ++rank) each[rank].resize(100);
  }
  const auto bytes = [](Ints& values) { return reinterpret_cast<std::byte*>(values.data()); };
  gpu.hold(world.stream(0));
  for (int rank = 0; rank < 2; ++rank) {
    const Stream stream = world.stream(rank);
    must(gpu.copy(bytes(in[rank]), bytes(sources[rank]), 400, stream));
    must(sum(world[rank], in[rank].data(), out[rank].data(), 100, world.on_stream(rank)));
    must(gpu.copy(bytes(kept[rank]), bytes(out[rank]), 400, stream));
    must(gpu.clear(bytes(out[rank]), 400, stream));
  }
  CHECK_FALSE(gpu.idle(world.stream(1)));  // it waits for rank 0, and nobody waits for it
  gpu.let_go(world.stream(0));
  finish(world);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(kept[rank] == Ints(100, 7));
    CHECK(out[rank] == Ints(100, 0));
  }
}

TEST_CASE("Operations keep their order across streams, also if one has a destroyed one's handle") {
  const bool same_handle = GENERATE(false, true);
  Rig world(2);
  FakeGpu& gpu = *world.gpu;
  const std::vector<Call> calls = {{.collective = Collective::kAllReduce, .count = 64},
                                   {.collective = Collective::kAllGather, .count = 9}};
  const auto wanted = on_host(calls, 2);
  auto found = buffers_of(calls, 2);
  Stream first = world.stream(0), second = first;
  gpu.hold(first);
  must(issue(world[0], calls[0], found[0][0], {.stream = first}));
  if (same_handle) {
    first = gpu.replace(second);
  } else {
    second = world.add_stream();
  }
  must(issue(world[0], calls[1], found[1][0], {.stream = second}));
  issue_on(world, 1, calls, found);
  // Either it waits for the first one's operation, or its own runs together with rank 1's first.
  while (!gpu.waits_for_event(second) && gpu.launches < 2) std::this_thread::yield();
  const bool waits = gpu.waits_for_event(second);
  gpu.let_go(first);
  REQUIRE(waits);
  gpu.drain(first);
  check_all(world, calls, found, wanted);
  if (same_handle) must(gpu.destroy_stream(first));
}

TEST_CASE("A graph's operations are new ones whenever it is replayed") {
  Rig world(3);
  const std::vector<Call> calls = {
      {.collective = Collective::kAllReduce, .count = 200},
      {.collective = Collective::kAllReduce, .count = 5, .algorithm = Algorithm::kOneShot},
      {.collective = Collective::kAllGather, .count = 40},
      {.collective = Collective::kBarrier, .count = 0}};
  const auto wanted = on_host(calls, 3);
  auto found = buffers_of(calls, 3);
  auto graphs = capture_all(world, [&](int rank) {
    issue_on(world, rank, calls, found);
    must(world[rank].status());
  });
  CHECK(world.gpu->launches == 0);
  CHECK(world.gpu->empty_launches == 6);  // of each kernel each rank's first, which may take long
  for (int replay = 1; replay <= 3; ++replay) {
    INFO("replay " << replay);
    for (auto& ranks : found) {
      for (int rank = 0; rank < 3; ++rank) ranks[rank].fill(rank);
    }
    replay_all(graphs);
    check_all(world, calls, found, wanted);
    CHECK(world.gpu->launches == replay * 3 * 4);
  }
  // And what is not captured goes on behind them.
  compare(world, {{.collective = Collective::kAllReduce, .count = 200}});
}

TEST_CASE(
    "Communicators of the same ranks do not get in each other's way, and parts have the device") {
  Rig world(4);
  compare(world, {{.collective = Collective::kAllReduce, .count = 10}});
  std::optional<Communicator> halves[4];
  on_threads(4, [&](int rank) {
    auto half = world[rank].split(rank % 2, rank);
    if (half.ok() && *half) halves[rank] = std::move(**half);
  });
  Ints one[4], two[4];
  for (int rank = 0; rank < 4; ++rank) {
    REQUIRE(halves[rank]);
    one[rank].assign(50, rank);
    two[rank].assign(50, rank);
    // The parts' operations first on some ranks, and on the same streams: in the same order, as
    // otherwise they would wait for each other.
    for (int i = 0; i < 2; ++i) {
      must(sum(world, rank, one[rank]));
      must(sum(*halves[rank], two[rank], world.on_stream(rank)));
    }
  }
  finish(world);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(one[rank] == Ints(50, 24));
    CHECK(two[rank] == Ints(50, 2 * (rank % 2 == 0 ? 2 : 4)));
    must(halves[rank]->status());
  }
}

TEST_CASE("A call waits for no copy of a program, its kernel does, and the copy for no kernel") {
  std::atomic<int> copies{0};
  std::atomic<bool> goes_on{false};
  Rig world(2);
  FakeGpu& gpu = *world.gpu;
  const Stream other = world.add_stream();
  Ints data[2] = {Ints(100, 1), Ints(100, 2)};
  const auto add = [&](int rank, size_t count, Stream stream) {
    must(sum(world[rank], data[rank].data(), data[rank].data(), count, {.stream = stream}));
  };
  gpu.before_copy = [&](const std::byte*, const std::byte*) {
    ++copies;
    while (!goes_on) std::this_thread::yield();
  };
  gpu.hold(world.stream(0));
  const int before = gpu.launches;
  add(0, 100, world.stream(0));
  testing::await("a copy begins while the stream is held", [&] { return copies == 1; });
  add(0, 99, world.stream(0));
  // The first program again, on a stream that is free.
  add(0, 100, other);
  // Right code passes at any speed; the pause gives wrong code its chance.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(gpu.launches == before);
  goes_on = true;
  for (const size_t count : {100, 99, 100}) add(1, count, world.stream(1));
  gpu.let_go(world.stream(0));
  finish(world);
  Ints wanted(100, 12);
  wanted[99] = 6;
  for (const Ints& found : data) CHECK(found == wanted);
  CHECK(copies == 4);
}

void drop_capture(FakeGpu& gpu, Stream stream) {
  const auto graph = gpu.end_capture(stream);
  if (graph.ok()) must(gpu.destroy_graph(*graph));
}

TEST_CASE("Programs that no longer fit make room for each other, but for those of graphs") {
  Rig world(2, {.program_bytes = 4096});
  // Call by call: no rank's room depends on what another one has begun.
  for (size_t count = 1; count <= 40; ++count) {
    Ints data[2] = {Ints(count, 1), Ints(count, 2)};
    for (int rank = 0; rank < 2; ++rank) must(sum(world, rank, data[rank]));
    finish(world);
    for (const Ints& each : data) CHECK(each == Ints(count, 3));
  }
  // How many a graph can have until there is no room.
  const auto fill = [&](World& ranks) {
    must(world.gpu->begin_capture(ranks.stream(0)));
    Status full;
    Ints data;
    while (data.size() < 40 && full.ok()) {
      data.resize(data.size() + 1);
      full = sum(ranks, 0, data);
    }
    drop_capture(*world.gpu, ranks.stream(0));
    check_failed(full, Code::kResourceExhausted, {"those of graphs"});
    return data.size();
  };
  World fresh(world.gpu, 2);
  CHECK(fill(world) == fill(fresh));
}

TEST_CASE("A captured group without room for its programs does not wait for what runs") {
  Rig world(2, {.config = small_config(std::chrono::hours(1)), .program_bytes = 4096});
  FakeGpu& gpu = *world.gpu;
  Ints data[2] = {Ints(50), Ints(50)}, other(100);
  gpu.hold(world.stream(0));
  for (int rank = 0; rank < 2; ++rank) must(sum(world, rank, data[rank]));
  const Stream stream = world.add_stream();
  must(gpu.begin_capture(stream, CudaCalls::kThreadLocal));
  std::atomic<bool> has_returned = false;
  Status full;
  std::thread captures([&] {
    (void)world[0].group_start();
    for (size_t count = 1; count <= 40; ++count) {
      (void)sum(world[0], other.data(), other.data(), count, {.stream = stream});
    }
    full = world[0].group_end();
    has_returned = true;
  });
  bool waited = false;
  try {
    testing::await("the captured group returns", [&] { return has_returned.load(); });
  } catch (const std::exception&) {
    waited = true;
  }
  gpu.let_go(world.stream(0));
  captures.join();
  CHECK_FALSE(waited);
  check_failed(full, Code::kResourceExhausted,
               {"A captured call does not wait for operations that run"});
  drop_capture(gpu, stream);
  world.synchronize();
}

}  // namespace
}  // namespace rondo::device::test
