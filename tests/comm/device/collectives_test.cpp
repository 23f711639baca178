// Collectives of a communicator on a device, as a user calls them, against those of the host; and
// how they are enqueued: in the order of streams, in graphs, without waiting for anybody.
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/world.hpp"
#include "tests/comm/schedule/operations.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("On a device, every collective gives what it gives on the host") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      const auto gpu = std::make_shared<FakeGpu>(2);
      {
        const Installed installed(gpu);
        World world(gpu, size);
        REQUIRE(world.all_created());
        compare(world, every_collective(size));
        CHECK(world[0].stats().operations == every_collective(size).size());
      }
      CHECK(gpu->alive() == 0);
    }
  }
}

TEST_CASE("GPUs that cannot reach each other meet in host memory") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      const auto gpu = std::make_shared<FakeGpu>(3);
      gpu->peers = {{0, 1}, {1, 0}};  // the third one stands apart
      {
        const Installed installed(gpu);
        World world(gpu, size);
        REQUIRE(world.all_created());
        // Nothing that touches peers' buffers may be chosen.
        const bool apart = size > 2;
        for (size_t count = 1; count <= size_t{1} << 26; count *= 4) {
          const Algorithm chosen =
              world[0].plan(Collective::kAllReduce, count, DataType::kInt32).algorithm;
          const bool direct = algorithms::traits_of(chosen).needs.references;
          INFO(count << ": " << name(chosen));
          if (apart) CHECK_FALSE(direct);
        }
        compare(world, every_collective(size));
        CHECK(gpu->enabled.empty() == (apart || size == 1));
        CHECK(gpu->most_mapped == (apart ? 2U : 1U));
      }
      CHECK(gpu->alive() == 0);
    }
  }
}

TEST_CASE("Buffers that other GPUs cannot access go through slots, on all ranks alike") {
  const auto gpu = std::make_shared<FakeGpu>(2);
  const Installed installed(gpu);
  Config config = small_config();
  config.slot_bytes = 4096;
  World world(gpu, 3, config);
  REQUIRE(world.all_created());
  std::vector<Call> calls;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather}) {
    for (size_t count = 1; count <= size_t{1} << 16; count *= 16) {
      const Algorithm chosen = world[0].plan(collective, count, DataType::kInt32).algorithm;
      if (!algorithms::traits_of(chosen).needs.references) continue;
      for (int i = 0; i < 4; ++i) calls.push_back({.collective = collective, .count = count});
    }
  }
  REQUIRE(calls.size() >= 8);
  const auto wanted = on_host(calls, 3);
  std::vector<std::vector<Buffers>> found(calls.size());
  const auto address = [&](size_t i, int rank) {
    return static_cast<const std::byte*>(found[i][static_cast<size_t>(rank)].in());
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < 3; ++rank) found[i].emplace_back(calls[i], rank, 3);
    // Of one call in two, in turn: one rank's In, which is the root's, and another's Out.
    if (i % 4 == 1) gpu->not_for_peers.insert(address(i, 0));
    if (i % 4 == 2) gpu->not_for_peers.insert(static_cast<std::byte*>(found[i][1].out()));
  }
  for (int rank = 0; rank < 3; ++rank) {
    for (size_t i = 0; i < calls.size(); ++i) {
      REQUIRE(
          issue(world[rank], calls[i], found[i][static_cast<size_t>(rank)], world.on_stream(rank))
              .ok());
    }
  }
  world.synchronize();
  const std::set<const std::byte*> told = gpu->told();
  for (int rank = 0; rank < 3; ++rank) {
    INFO(world[rank].status().to_string());
    CHECK(world[rank].status().ok());
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO(calls[i].to_string() << ", call " << i << ", rank " << rank);
      const auto r = static_cast<size_t>(rank);
      CHECK((found[i][r].memory() == wanted[i][r].memory()));
      // Peers read In of an all-reduce and of a broadcast's root, and write into Out of the others.
      const bool staged = (i % 4 == 1 && calls[i].collective != Collective::kAllGather) ||
                          (i % 4 == 2 && calls[i].collective != Collective::kBroadcast);
      if (staged) CHECK(told.count(address(i, rank)) == 0);
    }
  }
  // The last operation is direct.
  CHECK(told.count(address(calls.size() - 1, 0)) == 1);

  // One whose algorithm is forced cannot do without.
  CallOptions options = world.on_stream(1);
  options.algorithm = Algorithm::kTwoShotDirect;
  std::vector<int32_t> data(4096);
  gpu->not_for_peers.insert(reinterpret_cast<std::byte*>(data.data()));
  const Status refused = world[1].all_reduce(data.data(), data.data(), data.size(),
                                             DataType::kInt32, ReduceOp::kSum, options);
  CHECK(refused.code() == Code::kUnavailable);
  CHECK(refused.message().find("one of rank 1's comes from a pool") != std::string::npos);
}

TEST_CASE("On a device, an all-reduce by every algorithm, of every type") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  std::vector<Call> calls;
  for (const Algorithm algorithm : schedule::test::algorithms_of(Collective::kAllReduce)) {
    calls.push_back({.collective = Collective::kAllReduce, .count = 500, .algorithm = algorithm});
    // The host has references to library memory only between processes; these ranks are threads.
    calls.push_back({.collective = Collective::kAllReduce,
                     .count = 33,
                     .type = DataType::kFloat32,
                     .op = ReduceOp::kScaledSum,
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
    const auto gpu = std::make_shared<FakeGpu>(devices);
    const Installed installed(gpu);
    World world(gpu, 3);
    REQUIRE(world.all_created());
    compare(world, {{.collective = Collective::kAllReduce, .count = 100}});
    CHECK(gpu->launches_on_one_gpu == (devices == 1 ? 3 : 0));
  }
}

TEST_CASE("On a device, an all-to-all leaves the blocks of a rank in place until they are read") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  // Ranks do not tell each other whether they are in place.
  for (size_t count = 1; count <= size_t{1} << 26; count *= 2) {
    const Algorithm algorithm =
        world[0].plan(Collective::kAllToAll, count, DataType::kInt32).algorithm;
    INFO(count << ": " << name(algorithm));
    CHECK(algorithm != Algorithm::kTwoShotDirect);
  }
  compare(world, {{.collective = Collective::kAllToAll, .count = 20000, .in_place = true}});
}

TEST_CASE("On a device, small one-shot operations from everybody to everybody go by LL") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  const auto by_ll = [&](Collective collective, size_t count, Algorithm algorithm) {
    const int before = gpu->launches_by_ll;
    compare(world, {{.collective = collective, .count = count, .algorithm = algorithm}});
    return gpu->launches_by_ll - before;
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
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  Config config = small_config();
  config.slots = 0;
  config.slot_bytes = 0;
  for (const auto& [ranks, most] : {std::pair<int, size_t>{4, 16 << 10}, {5, 8 << 10}}) {
    World world(gpu, ranks, config);
    REQUIRE(world.all_created());
    const size_t fits = 2 * most / sizeof(float);  // two channels
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kScaledSum}) {
      for (const size_t count : {fits, fits + 1}) {
        INFO(ranks << " ranks, " << count << " floats, " << name(op));
        const int before = gpu->launches_by_ll;
        compare(world, {{.collective = Collective::kAllReduce,
                         .count = count,
                         .type = DataType::kFloat32,
                         .op = op,
                         .algorithm = Algorithm::kOneShot}});
        CHECK(gpu->launches_by_ll - before == (count == fits ? ranks : 0));
      }
    }
  }
}

TEST_CASE("What a stream holds before and after an operation is done before and after it") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  const std::vector<int32_t> sources[2] = {std::vector<int32_t>(100, 3),
                                           std::vector<int32_t>(100, 4)};
  std::vector<int32_t> in[2], out[2], kept[2];
  for (int rank = 0; rank < 2; ++rank) {
    in[rank].resize(100);
    out[rank].resize(100);
    kept[rank].resize(100);
  }
  const auto bytes = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
  gpu->hold(world.stream(0));
  for (int rank = 0; rank < 2; ++rank) {
    const Stream stream = world.stream(rank);
    REQUIRE(gpu->copy(bytes(in[rank]), reinterpret_cast<const std::byte*>(sources[rank].data()),
                      400, stream)
                .ok());
    REQUIRE(world[rank]
                .all_reduce(in[rank].data(), out[rank].data(), 100, DataType::kInt32,
                            ReduceOp::kSum, world.on_stream(rank))
                .ok());
    REQUIRE(gpu->copy(bytes(kept[rank]), bytes(out[rank]), 400, stream).ok());
    REQUIRE(gpu->clear(bytes(out[rank]), 400, stream).ok());
  }
  CHECK_FALSE(gpu->idle(world.stream(1)));  // it waits for rank 0, and nobody waits for it
  gpu->let_go(world.stream(0));
  world.synchronize();
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(kept[rank] == std::vector<int32_t>(100, 7));
    CHECK(out[rank] == std::vector<int32_t>(100, 0));
    CHECK(world[rank].status().ok());
  }
}

TEST_CASE("Operations of one communicator keep their order on several streams") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  auto other = gpu->create_stream();
  REQUIRE(other.ok());
  {
    World world(gpu, 2);
    REQUIRE(world.all_created());
    const std::vector<Call> calls = {{.collective = Collective::kAllReduce, .count = 64},
                                     {.collective = Collective::kAllGather, .count = 9}};
    const auto wanted = on_host(calls, 2);
    std::vector<Buffers> found[2];
    gpu->hold(world.stream(0));
    for (int rank = 0; rank < 2; ++rank) {
      for (size_t i = 0; i < 2; ++i) {
        CallOptions options = world.on_stream(rank);
        if (rank == 0 && i == 1) options.stream = *other;
        found[rank].reserve(2);
        found[rank].emplace_back(calls[i], rank, 2);
        REQUIRE(issue(world[rank], calls[i], found[rank][i], options).ok());
      }
    }
    // Either it stands behind the first one, or it has run before it, and is wrong.
    while (!gpu->waits_for_event(*other) && !gpu->idle(*other)) std::this_thread::yield();
    gpu->let_go(world.stream(0));
    world.synchronize();
    REQUIRE(gpu->synchronize(*other).ok());
    for (int rank = 0; rank < 2; ++rank) {
      const auto r = static_cast<size_t>(rank);
      CHECK(world[rank].status().ok());
      for (size_t i = 0; i < 2; ++i) CHECK((found[rank][i].memory() == wanted[i][r].memory()));
    }
  }
  REQUIRE(gpu->destroy_stream(*other).ok());
}

TEST_CASE("A stream that has the handle of a destroyed one waits for that one's operations") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  const std::vector<Call> calls = {{.collective = Collective::kAllReduce, .count = 64},
                                   {.collective = Collective::kAllGather, .count = 9}};
  const auto wanted = on_host(calls, 2);
  std::vector<Buffers> found[2];
  Stream destroyed = nullptr;
  gpu->hold(world.stream(0));
  for (int rank = 0; rank < 2; ++rank) {
    found[rank].reserve(2);
    for (size_t i = 0; i < 2; ++i) {
      if (rank == 0 && i == 1) destroyed = gpu->replace(world.stream(0));
      found[rank].emplace_back(calls[i], rank, 2);
      REQUIRE(issue(world[rank], calls[i], found[rank][i], world.on_stream(rank)).ok());
    }
  }
  // Either the new stream waits for the old one's operation, or its own runs beside rank 1's first.
  while (!gpu->waits_for_event(world.stream(0)) && gpu->launches < 2) std::this_thread::yield();
  const bool waits = gpu->waits_for_event(world.stream(0));
  gpu->let_go(destroyed);
  REQUIRE(waits);
  gpu->drain(destroyed);
  world.synchronize();
  for (int rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<size_t>(rank);
    CHECK(world[rank].status().ok());
    for (size_t i = 0; i < 2; ++i) CHECK((found[rank][i].memory() == wanted[i][r].memory()));
  }
  REQUIRE(gpu->destroy_stream(destroyed).ok());
}

TEST_CASE("A graph's operations are new ones whenever it is replayed") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  const std::vector<Call> calls = {
      {.collective = Collective::kAllReduce, .count = 200},
      {.collective = Collective::kAllReduce, .count = 5, .algorithm = Algorithm::kOneShot},
      {.collective = Collective::kAllGather, .count = 40},
      {.collective = Collective::kBarrier, .count = 0}};
  const auto wanted = on_host(calls, 3);
  std::vector<std::vector<Buffers>> found(calls.size());
  std::vector<FakeGpu::Graph> graphs;
  for (size_t i = 0; i < calls.size(); ++i) {
    for (int rank = 0; rank < 3; ++rank) found[i].emplace_back(calls[i], rank, 3);
  }
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE(gpu->begin_capture(world.stream(rank)).ok());
    for (size_t i = 0; i < calls.size(); ++i) {
      const Status status =
          issue(world[rank], calls[i], found[i][static_cast<size_t>(rank)], world.on_stream(rank));
      INFO(status.to_string());
      REQUIRE(status.ok());
      CHECK(world[rank].status().ok());
    }
    graphs.push_back(gpu->end_capture(world.stream(rank)).value());
  }
  CHECK(gpu->launches == 0);
  CHECK(gpu->empty_launches == 6);  // of each kernel each rank's first, which may take long
  for (int replay = 1; replay <= 3; ++replay) {
    for (int rank = 0; rank < 3; ++rank)
      gpu->replay(graphs[static_cast<size_t>(rank)], world.stream(rank));
    world.synchronize();
    CHECK(gpu->launches == replay * 3 * 4);
    for (size_t i = 0; i < calls.size(); ++i) {
      for (int rank = 0; rank < 3; ++rank) {
        const auto r = static_cast<size_t>(rank);
        INFO(calls[i].to_string() << ", rank " << rank << ", replay " << replay);
        CHECK((found[i][r].memory() == wanted[i][r].memory()));
        found[i][r].fill(rank);
      }
    }
  }
  // And what is not captured goes on behind them.
  compare(world, {{.collective = Collective::kAllReduce, .count = 200}});
}

TEST_CASE(
    "Communicators of the same ranks do not get in each other's way, and parts have the device") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  {
    World world(gpu, 4);
    REQUIRE(world.all_created());
    compare(world, {{.collective = Collective::kAllReduce, .count = 10}});
    std::vector<std::optional<Communicator>> halves(4);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        auto half = world[rank].split(rank % 2, rank);
        if (half.ok() && *half) halves[static_cast<size_t>(rank)] = std::move(**half);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<int32_t> one[4], two[4];
    for (int rank = 0; rank < 4; ++rank) {
      const auto r = static_cast<size_t>(rank);
      REQUIRE(halves[r]);
      one[rank].assign(50, rank);
      two[rank].assign(50, rank);
      // The parts' operations first on some ranks, and on the same streams: in the same order, as
      // otherwise they would wait for each other.
      for (int i = 0; i < 2; ++i) {
        REQUIRE(world[rank]
                    .all_reduce(one[rank].data(), one[rank].data(), 50, DataType::kInt32,
                                ReduceOp::kSum, world.on_stream(rank))
                    .ok());
        REQUIRE(halves[r]
                    ->all_reduce(two[rank].data(), two[rank].data(), 50, DataType::kInt32,
                                 ReduceOp::kSum, world.on_stream(rank))
                    .ok());
      }
    }
    world.synchronize();
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(one[rank] == std::vector<int32_t>(50, 24));
      CHECK(two[rank] == std::vector<int32_t>(50, 2 * (rank % 2 == 0 ? 2 : 4)));
      CHECK(world[rank].status().ok());
      CHECK(halves[static_cast<size_t>(rank)]->status().ok());
    }
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("A group's collectives are enqueued in order at its end") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<int32_t> sum[2], all[2];
  for (int rank = 0; rank < 2; ++rank) {
    sum[rank].assign(20, rank + 1);
    all[rank].resize(40);
    REQUIRE(world[rank].group_start().ok());
    REQUIRE(world[rank]
                .all_reduce(sum[rank].data(), sum[rank].data(), 20, DataType::kInt32,
                            ReduceOp::kSum, world.on_stream(rank))
                .ok());
    REQUIRE(world[rank]
                .all_gather(sum[rank].data(), all[rank].data(), 20, DataType::kInt32,
                            world.on_stream(rank))
                .ok());
    CHECK(world[rank].stats().operations == 0);
    REQUIRE(world[rank].group_end().ok());
    CHECK(world[rank].stats().operations == 2);
  }
  world.synchronize();
  for (int rank = 0; rank < 2; ++rank) CHECK(all[rank] == std::vector<int32_t>(40, 3));
}

TEST_CASE("A call waits for no copy of a program, its kernel does, and the copy for no kernel") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  const Stream other = *gpu->create_stream();
  std::vector<int32_t> data[2] = {std::vector<int32_t>(100, 1), std::vector<int32_t>(100, 2)};
  const auto sum = [&](int rank, size_t count, Stream stream) {
    int32_t* const values = data[rank].data();
    return world[rank].all_reduce(values, values, count, DataType::kInt32, ReduceOp::kSum,
                                  {.stream = stream});
  };
  std::atomic<int> copies{0};
  std::atomic<bool> goes_on{false};
  gpu->before_copy = [&](const std::byte*, const std::byte*) {
    ++copies;
    while (!goes_on) std::this_thread::yield();
  };
  gpu->hold(world.stream(0));
  const int before = gpu->launches;
  REQUIRE(sum(0, 100, world.stream(0)).ok());
  testing::await("a copy begins while the stream is held", [&] { return copies == 1; });
  REQUIRE(sum(0, 99, world.stream(0)).ok());
  // The first program again, on a stream that is free.
  REQUIRE(sum(0, 100, other).ok());
  // Right code passes at any speed; the pause gives wrong code its chance.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(gpu->launches == before);
  goes_on = true;
  for (const size_t count : {100, 99, 100}) REQUIRE(sum(1, count, world.stream(1)).ok());
  gpu->let_go(world.stream(0));
  world.synchronize();
  REQUIRE(gpu->synchronize(other).ok());
  std::vector<int32_t> wanted(100, 12);
  wanted[99] = 6;
  for (const auto& found : data) CHECK(found == wanted);
  CHECK(copies == 4);
  REQUIRE(gpu->destroy_stream(other).ok());
}

TEST_CASE("Programs that no longer fit make room for each other, but for those of graphs") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu, 4096);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<Call> calls;
  for (size_t count = 1; count <= 40; ++count) {
    calls.push_back({.collective = Collective::kAllReduce, .count = count});
  }
  // Rank by rank: no rank's room depends on what another one has begun.
  const auto wanted = on_host(calls, 2);
  for (size_t i = 0; i < calls.size(); ++i) {
    std::vector<Buffers> found;
    for (int rank = 0; rank < 2; ++rank) found.emplace_back(calls[i], rank, 2);
    for (int rank = 0; rank < 2; ++rank) {
      REQUIRE(issue(world[rank], calls[i], found[static_cast<size_t>(rank)], world.on_stream(rank))
                  .ok());
    }
    world.synchronize();
    for (size_t rank = 0; rank < 2; ++rank)
      CHECK((found[rank].memory() == wanted[i][rank].memory()));
  }
  // How many a graph can have until there is no room.
  const auto fill = [&](World& ranks) {
    REQUIRE(gpu->begin_capture(ranks.stream(0)).ok());
    Status full;
    std::vector<int32_t> data(100);
    size_t count = 0;
    while (count < 40 && full.ok()) {
      full = ranks[0].all_reduce(data.data(), data.data(), ++count, DataType::kInt32,
                                 ReduceOp::kSum, ranks.on_stream(0));
    }
    (void)gpu->end_capture(ranks.stream(0));
    CHECK(full.code() == Code::kResourceExhausted);
    CHECK(full.message().find("those of graphs") != std::string::npos);
    return count;
  };
  World fresh(gpu, 2);
  REQUIRE(fresh.all_created());
  CHECK(fill(world) == fill(fresh));
}

TEST_CASE("A captured group without room for its programs does not wait for what runs") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu, 4096);
  Config config = small_config();
  config.timeout = std::chrono::hours(1);
  World world(gpu, 2, config);
  REQUIRE(world.all_created());
  std::vector<int32_t> data[2] = {{}, {}}, other(100);
  gpu->hold(world.stream(0));
  for (int rank = 0; rank < 2; ++rank) {
    data[rank].resize(50);
    REQUIRE(world[rank]
                .all_reduce(data[rank].data(), data[rank].data(), 50, DataType::kInt32,
                            ReduceOp::kMax, world.on_stream(rank))
                .ok());
  }
  CallOptions options;
  options.stream = *gpu->create_stream();
  REQUIRE(gpu->begin_capture(options.stream, 1).ok());
  std::atomic<bool> has_returned = false;
  Status full;
  std::thread captures([&] {
    (void)world[0].group_start();
    for (size_t count = 1; count <= 40; ++count) {
      (void)world[0].all_reduce(other.data(), other.data(), count, DataType::kInt32, ReduceOp::kSum,
                                options);
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
  gpu->let_go(world.stream(0));
  captures.join();
  CHECK_FALSE(waited);
  CHECK(full.code() == Code::kResourceExhausted);
  says(full, "A captured call does not wait for operations that run");
  (void)gpu->end_capture(options.stream);
  world.synchronize();
  REQUIRE(gpu->destroy_stream(options.stream).ok());
}

}  // namespace
}  // namespace rondo::device::test
