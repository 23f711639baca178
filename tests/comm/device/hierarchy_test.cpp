// Communicators on several GPUs of each of several hosts, which are pretended: operations that go over
// the links between a host's GPUs, and staged only between hosts.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/comm/device/staged_world.hpp"

namespace rondo::device::test {
namespace {

std::string places_of(const std::vector<int>& hosts) {
  std::string text = "ranks on hosts";
  for (const int host : hosts) text += " " + std::to_string(host);
  return text;
}

std::vector<Call> calls_for(int size) {
  std::vector<Call> calls;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kBroadcast}) {
    // Fewer elements than ranks of a host, less than a share, and shares with and without a rest.
    for (const size_t count : {0, 1, 2, 31, 96, 301, 1000}) {
      for (const bool in_place : {false, true}) {
        calls.push_back({.collective = collective,
                         .count = count,
                         .type = count % 2 == 0 ? DataType::kInt32 : DataType::kFloat32,
                         .op = count == 31 ? ReduceOp::kMax : ReduceOp::kSum,
                         .root = static_cast<int>(count) % size,
                         .in_place = in_place});
      }
    }
  }
  return calls;
}

TEST_CASE("Over hosts with several GPUs, operations over their links give what the host's give") {
  struct LinkedPlaces {
    std::vector<int> hosts;
    bool has_links;
  };
  for (const auto& [hosts, has_links] : std::vector<LinkedPlaces>{{{0, 1}, false},
                                                                  {{0, 0, 1, 1}, true},
                                                                  {{0, 1, 1, 0}, true},
                                                                  {{0, 0, 0, 1, 1, 1}, true},
                                                                  {{0, 0, 1, 1, 2, 2}, true},
                                                                  {{0, 0, 1}, false}}) {
    for (const size_t staging_bytes : {kMuch, size_t{1600}}) {
      DYNAMIC_SECTION(places_of(hosts) << ", staged through " << staging_bytes << " bytes") {
        const Pretended pretended(hosts);
        const auto gpu = gpus(staging_bytes);
        {
          const Installed installed(gpu);
          const auto size = static_cast<int>(hosts.size());
          World world(gpu, size, hierarchical());
          REQUIRE(world.all_created());
          const auto calls = calls_for(size);
          compare(world, calls);
          CHECK((gpu->launches > 0) == has_links);
          // A staged call counts its pieces.
          if (staging_bytes == kMuch) CHECK(world[0].stats().operations == calls.size());
        }
        CHECK(gpu->alive() == 0);
      }
    }
  }
}

TEST_CASE("Over hosts with several GPUs, every type and operator gives what it gives on the host") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus(1600);
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  std::vector<Call> calls;
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
    for (int type = 0; type < kDataTypes; ++type) {
      for (int op = 0; op < kReduceOps; ++op) {
        const Call call = {.collective = collective,
                           .count = 131,
                           .type = static_cast<DataType>(type),
                           .op = static_cast<ReduceOp>(op)};
        // A float8's few bits round away in which order its sums were folded.
        const bool scales = call.op == ReduceOp::kScaledSum;
        const bool adds = scales || call.op == ReduceOp::kSum || call.op == ReduceOp::kAvg;
        const bool rounds = (call.type == DataType::kFloat8E5M2 && scales) ||
                            (call.type == DataType::kFloat8E4M3 && adds &&
                             collective == Collective::kReduceScatter);
        if (supports(call.collective, call.type, call.op) && !rounds) calls.push_back(call);
      }
    }
  }
  compare(world, calls);
  CHECK(gpu->launches > 0);
}

TEST_CASE(
    "Over hosts with several GPUs, other collectives, messages and groups are staged between") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  auto calls = every_collective(4);
  // By hierarchical never in place.
  std::erase_if(calls, [](const Call& call) {
    return call.collective == Collective::kAllToAll && call.in_place;
  });
  compare(world, calls);
  // What a group has of both, in its order: 4, 4 * 4, and rank 3's.
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1)), letters = data;
  const int before = gpu->launches;
  for (int rank = 0; rank < 4; ++rank) {
    const auto r = static_cast<size_t>(rank);
    Communicator& c = world[rank];
    const CallOptions options = world.on_stream(rank);
    REQUIRE(c.group_start().ok());
    REQUIRE(sum(world, rank, data[r]).ok());
    REQUIRE(
        c.reduce(data[r].data(), data[r].data(), 300, DataType::kInt32, 3, ReduceOp::kSum, options)
            .ok());
    REQUIRE(c.broadcast(data[r].data(), data[r].data(), 300, DataType::kInt32, 3, options).ok());
    if (rank == 0) REQUIRE(c.send(letters[0].data(), 300, DataType::kInt32, 3, options).ok());
    if (rank == 3) REQUIRE(c.recv(letters[3].data(), 300, DataType::kInt32, 0, options).ok());
    REQUIRE(c.group_end().ok());
  }
  world.synchronize();
  check_all_ok(world);
  CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(300, 16)));
  CHECK(gpu->launches > before);
}

/// Bytes that an operation of every rank copies between GPUs and the host.
size_t copied_by(Algorithm algorithm, Collective collective, size_t count) {
  const Pretended pretended({0, 0, 0, 1, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  Config config = small_config();
  config.algorithm = algorithm;
  World world(gpu, 6, config);
  REQUIRE(world.all_created());
  const Call call = {.collective = collective, .count = count};
  std::vector<Buffers> buffers;
  for (int rank = 0; rank < 6; ++rank) buffers.emplace_back(call, rank, 6);
  const auto issue_all = [&] {
    for (int rank = 0; rank < 6; ++rank) {
      REQUIRE(
          issue(world[rank], call, buffers[static_cast<size_t>(rank)], world.on_stream(rank)).ok());
    }
    world.synchronize();
    check_all_ok(world);
  };
  issue_all();  // the first one copies programs, too
  const size_t before = gpu->copied_bytes;
  issue_all();
  return gpu->copied_bytes - before;
}

TEST_CASE("Over hosts with several GPUs, a host's GPUs copy no more than one of them would") {
  constexpr size_t kCount = 9600, kBytes = kCount * 4;
  struct CopiedCase {
    Collective collective;
    size_t staged, linked;
  };
  for (const auto& [collective, staged, linked] :
       {CopiedCase{Collective::kAllReduce, 6 * 2 * kBytes, 2 * 2 * kBytes},
        CopiedCase{Collective::kAllGather, 6 * 7 * kBytes, 6 * 3 * kBytes},
        CopiedCase{Collective::kBroadcast, 7 * kBytes, 3 * kBytes},
        CopiedCase{Collective::kReduceScatter, 6 * 7 * kBytes, 6 * 3 * kBytes}}) {
    INFO(name(collective));
    CHECK(copied_by(Algorithm::kRing, collective, kCount) == staged);
    CHECK(copied_by(Algorithm::kHierarchical, collective, kCount) == linked);
  }
}

TEST_CASE("Over hosts with several GPUs, who asks gets their links, and plans say so") {
  constexpr size_t kSmall = 1000, kLarge = size_t{1} << 18;
  const Pretended pretended({0, 0, 1, 1});
  struct LinksCase {
    Algorithm algorithm;
    bool reproducible;
  };
  for (const auto& [algorithm, reproducible] :
       {LinksCase{Algorithm::kHierarchical, false}, LinksCase{Algorithm::kHierarchical, true},
        LinksCase{Algorithm::kAuto, false}}) {
    const auto gpu = gpus();
    const Installed installed(gpu);
    Config config = small_config();
    config.slot_bytes = 65536;
    config.algorithm = algorithm;
    config.reproducible = reproducible;
    World world(gpu, 4, config);
    REQUIRE(world.all_created());
    const auto plan_of = [&](size_t count) {
      return world[0].plan(Collective::kAllReduce, count, DataType::kInt32);
    };
    for (const size_t count : {kSmall, kLarge}) {
      const bool links = algorithm == Algorithm::kHierarchical && !reproducible;
      std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(count, 1));
      const uint64_t before = world[0].stats().bytes_sent;
      for (int rank = 0; rank < 4; ++rank) {
        REQUIRE(sum(world, rank, data[static_cast<size_t>(rank)]).ok());
      }
      world.synchronize();
      check_all_ok(world);
      CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(count, 4)));
      CHECK((gpu->launches > 0) == links);
      const Plan plan = plan_of(count);
      if (!links) continue;
      CHECK(plan.algorithm == Algorithm::kHierarchical);
      if (count == kSmall) continue;  // of which rank 1 has more
      CHECK(plan.bytes_sent_per_rank == world[0].stats().bytes_sent - before);
      CHECK(plan.predicted_us > 0);
    }
  }
}

TEST_CASE("Over hosts with several GPUs, calls on several streams keep their order") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
  std::vector<Stream> second;
  for (int rank = 0; rank < 4; ++rank) {
    second.push_back(*gpu->create_stream());
    if (rank == 1) gpu->hold(world.stream(rank));
    // By links, staged, by links, and staged once more: no event of the caller's is between them.
    CallOptions options = world.on_stream(rank), other = options;
    other.stream = second.back();
    std::vector<int32_t>& own = data[static_cast<size_t>(rank)];
    REQUIRE(sum(world, rank, own, options).ok());  // 4
    const auto staged = [&](const CallOptions& on) {
      return world[rank]
          .reduce(own.data(), own.data(), own.size(), DataType::kInt32, 0, ReduceOp::kSum, on)
          .ok();
    };
    REQUIRE(staged(other));                        // 16, 4, 4, 4
    REQUIRE(sum(world, rank, own, options).ok());  // 28
    REQUIRE(staged(other));                        // 112, and 28 for the rest
    REQUIRE(world[rank]
                .broadcast(own.data(), own.data(), own.size(), DataType::kInt32, 0, options)
                .ok());
  }
  CHECK_FALSE(gpu->idle(world.stream(0)));
  gpu->let_go(world.stream(1));
  world.synchronize();
  for (int rank = 0; rank < 4; ++rank) {
    gpu->drain(second[static_cast<size_t>(rank)]);
    REQUIRE(gpu->destroy_stream(second[static_cast<size_t>(rank)]).ok());
  }
  check_all_ok(world);
  CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(300, 112)));
}

TEST_CASE("Over hosts with several GPUs, an operation over links waits for one of another stream") {
  constexpr size_t kCount = 1 << 16;
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(kCount, 1));
  std::vector<std::vector<int32_t>> gathered(4, std::vector<int32_t>(4 * kCount));
  std::vector<Stream> second;
  for (int rank = 0; rank < 4; ++rank) {
    const auto r = static_cast<size_t>(rank);
    second.push_back(*gpu->create_stream());
    CallOptions options = world.on_stream(rank), other = options;
    other.stream = second.back();
    // The gathering begins with what goes between hosts, the sum ends with what goes inside.
    REQUIRE(sum(world, rank, data[r], options).ok());
    REQUIRE(world[rank]
                .all_gather(data[r].data(), gathered[r].data(), kCount, DataType::kInt32, other)
                .ok());
  }
  world.synchronize();
  for (int rank = 0; rank < 4; ++rank) {
    gpu->drain(second[static_cast<size_t>(rank)]);
    REQUIRE(gpu->destroy_stream(second[static_cast<size_t>(rank)]).ok());
  }
  check_all_ok(world);
  CHECK(gathered == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(4 * kCount, 4)));
}

TEST_CASE("Over hosts with several GPUs, many calls in a row get through") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(100, 1));
  std::vector<std::thread> ranks;
  std::atomic<int> refused{0};
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int i = 0; i < 300; ++i) {
        refused += !world[rank]
                        .all_reduce(data[static_cast<size_t>(rank)].data(),
                                    data[static_cast<size_t>(rank)].data(), 100, DataType::kInt32,
                                    ReduceOp::kMax, world.on_stream(rank))
                        .ok();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  world.synchronize();
  CHECK(refused == 0);
  CHECK(world[0].stats().operations == 300);
  check_all_ok(world);
}

/// All ranks' calls by this thread, rank by rank: a group of sums of so many elements each.
Status sum_in_groups(World& world, std::vector<std::vector<int32_t>>& data,
                     const std::vector<size_t>& counts) {
  Status first;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::vector<int32_t>& own = data[static_cast<size_t>(rank)];
    Communicator& c = world[rank];
    REQUIRE(c.group_start().ok());
    for (const size_t count : counts) {
      (void)c.all_reduce(own.data(), own.data(), count, DataType::kInt32, ReduceOp::kMax,
                         world.on_stream(rank));
    }
    const Status status = c.group_end();
    if (first.ok()) first = status;
  }
  return first;
}

TEST_CASE("Over hosts with several GPUs, no group of one thread's ranks waits for itself") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300));
  const auto fill = [&] {
    for (size_t rank = 0; rank < 4; ++rank) {
      data[rank].assign(300, static_cast<int32_t>(rank));
    }
  };
  SECTION("of many calls") {
    const Installed installed(gpu);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    const Status refused = sum_in_groups(world, data, std::vector<size_t>(300, 100));
    CHECK(refused.code() == Code::kInvalidArgument);
    says(refused, "a group of 300 operations and 0 messages, which are up to 1200 launches");
    REQUIRE(world[0].group_start().ok());
    for (int i = 0; i < 64; ++i) (void)sum(world, 0, data[0]);
    (void)world[0].send(data[0].data(), 1, DataType::kInt32, 1, world.on_stream(0));
    says(world[0].group_end(), "a group of 64 operations and 1 messages");
    // More than streams take, together.
    fill();
    for (int i = 0; i < 6; ++i) {
      const Status status = sum_in_groups(world, data, std::vector<size_t>(64, 300));
      INFO(status.to_string());
      REQUIRE(status.ok());
    }
    world.synchronize();
    check_all_ok(world);
    CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(300, 3)));
  }
  SECTION("of calls whose programs make room for each other") {
    const Installed installed(gpu, 16384);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    fill();
    for (size_t count = 40; count < 300; count += 20) {
      const Status status = sum_in_groups(world, data, {count, count + 1});
      INFO(status.to_string());
      REQUIRE(status.ok());
    }
    world.synchronize();
    check_all_ok(world);
    CHECK(std::vector<int32_t>(data[0].begin(), data[0].begin() + 281) ==
          std::vector<int32_t>(281, 3));
    const Status alike = sum_in_groups(world, data, std::vector<size_t>(64, 290));
    INFO(alike.to_string());
    REQUIRE(alike.ok());
    world.synchronize();
    std::vector<size_t> counts;
    for (size_t count = 100; count < 160; ++count) counts.push_back(count);
    const Status full = sum_in_groups(world, data, counts);
    CHECK(full.code() == Code::kResourceExhausted);
    says(full, "the programs of a group of 60 operations");
  }
}

TEST_CASE(
    "Over hosts with several GPUs, a captured stream is refused, and parts have links again") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
  REQUIRE(gpu->begin_capture(world.stream(0)).ok());
  says(sum(world, 0, data[0]), "the stream is being captured");
  CHECK(gpu->size_of_graph(gpu->end_capture(world.stream(0)).value()) == 0);
  for (int rank = 0; rank < 4; ++rank) {
    REQUIRE(sum(world, rank, data[static_cast<size_t>(rank)]).ok());
  }
  world.synchronize();
  check_all_ok(world);
  CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(300, 4)));
  // The parts that it is made of do not count among the caller's.
  std::vector<std::thread> ranks;
  std::atomic<int> failed{0};
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      auto part = world[rank].split(0, rank);
      if (!part.ok() || !*part) {
        ++failed;
        return;
      }
      std::vector<int32_t>& own = data[static_cast<size_t>(rank)];
      failed += !(*part)
                     ->all_reduce(own.data(), own.data(), 300, DataType::kInt32, ReduceOp::kSum,
                                  world.on_stream(rank))
                     .ok();
      failed += (*part)->flight_record().find(", split") != std::string::npos;
      gpu->drain(world.stream(rank));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(failed == 0);
  CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(300, 16)));
}

}  // namespace
}  // namespace rondo::device::test
