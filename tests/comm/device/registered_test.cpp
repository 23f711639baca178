// Registered memory: ranks that are processes of their own, as far as the stand-in can tell, access
// each other's buffers in place, at addresses that are not the owner's.
#include <algorithm>
#include <vector>

#include "tests/comm/device/registered_memory.hpp"
#include "tests/comm/device/varying_calls.hpp"

namespace rondo::device::test {
namespace {

std::vector<Call> every_direct_form(int size) {
  std::vector<Call> calls;
  for (const Algorithm algorithm : {Algorithm::kOneShotDirect, Algorithm::kTwoShotDirect}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
          Collective::kBroadcast, Collective::kReduce, Collective::kGather, Collective::kScatter,
          Collective::kAllToAll, Collective::kInclusiveScan, Collective::kExclusiveScan}) {
      if (algorithms::find(collective, algorithm) == nullptr) continue;
      for (const size_t count : {1, 7, 300}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !algorithms::is_in_place_safe(collective, algorithm)) continue;
          calls.push_back({.collective = collective,
                           .count = count,
                           .type = count % 2 == 0 ? DataType::kInt32 : DataType::kFloat32,
                           .op = count == 7 ? ReduceOp::kMax : ReduceOp::kSum,
                           .root = size / 2,
                           .algorithm = algorithm,
                           .in_place = in_place});
        }
      }
    }
  }
  return calls;
}

TEST_CASE("Between processes, every direct form gives the host's bits in registered memory") {
  for (const int size : testing::sizes({2, 3, 4})) {
    for (const int ranks_of_a_process : {1, 2}) {
      DYNAMIC_SECTION(size << " ranks, " << ranks_of_a_process << " to a process") {
        const auto gpu = make_gpu(ranks_of_a_process);
        const Installed installed(gpu);
        {
          World world(gpu, size);
          REQUIRE(world.all_created());
          Slabs slabs(world, *gpu);
          if (ranks_of_a_process < size) {
            CallOptions options = world.on_stream(0);
            options.algorithm = Algorithm::kTwoShotDirect;
            std::byte* const memory = slabs.begin(0);
            const Status refused =
                world[0].all_reduce(memory, memory, 8, DataType::kInt32, ReduceOp::kSum, options);
            CHECK(refused.code() == Code::kUnavailable);
            CHECK(refused.message().find("unless memory has been registered") != std::string::npos);
          }
          require_registered(world, slabs);
          compare(world, slabs, every_direct_form(size));
          compare(world, slabs,
                  {{.collective = Collective::kAllReduce,
                    .count = 333,
                    .type = DataType::kFloat32,
                    .op = ReduceOp::kScaledSum,
                    .algorithm = Algorithm::kTwoShotDirect}});
          CHECK(gpu->trespasses == 0);
          CHECK_FALSE(gpu->told().empty());
          require_unregistered(world, slabs);
        }
        CHECK(gpu->alive() == 0);
        CHECK(gpu->freed_while_imported == 0);
      }
    }
  }
}

TEST_CASE(
    "Between processes, _v collectives in registered memory give what they give on the host") {
  constexpr Collective kCollectives[] = {Collective::kAllGatherV, Collective::kReduceScatterV,
                                         Collective::kGatherV, Collective::kScatterV,
                                         Collective::kAllToAllV};  // as varying_calls() has them
  for (const int size : testing::sizes({2, 3, 4})) {
    DYNAMIC_SECTION(size << " ranks") {
      const auto calls = varying_calls(size);
      REQUIRE(calls.size() == std::size(kCollectives));
      const auto ranks = static_cast<size_t>(size);
      using Ints = std::vector<int32_t>;
      std::vector<Ints> wanted(ranks * calls.size(), Ints(kRoom, -1));
      run_on_host(size, [&](Communicator& c) {
        const Ints in = filled(c.rank());
        for (size_t i = 0; i < calls.size(); ++i) {
          int32_t* const out = wanted[i * ranks + static_cast<size_t>(c.rank())].data();
          testing::expect_ok(calls[i](c, in.data(), out, {}), "_v");
        }
      });
      const auto gpu = make_gpu();
      const Installed installed(gpu);
      World world(gpu, size);
      REQUIRE(world.all_created());
      Slabs slabs(world, *gpu);
      require_registered(world, slabs);
      int direct = 0;
      for (const Algorithm algorithm :
           {Algorithm::kAuto, Algorithm::kOneShotDirect, Algorithm::kTwoShotDirect}) {
        slabs.clear();
        std::vector<int32_t*> in, out(wanted.size(), nullptr);
        const auto take = [&](int rank) {
          return reinterpret_cast<int32_t*>(slabs.take(rank, kRoom * sizeof(int32_t)));
        };
        for (int rank = 0; rank < size; ++rank) {
          in.push_back(take(rank));
          std::ranges::copy(filled(rank), in.back());
        }
        for (size_t i = 0; i < calls.size(); ++i) {
          if (algorithm != Algorithm::kAuto &&
              algorithms::find(kCollectives[i], algorithm) == nullptr) {
            continue;
          }
          gpu->forget_told();
          for (int rank = 0; rank < size; ++rank) {
            int32_t*& own = out[i * ranks + static_cast<size_t>(rank)];
            own = take(rank);
            std::fill_n(own, kRoom, -1);
            CallOptions options = world.on_stream(rank);
            options.algorithm = algorithm;
            INFO(name(kCollectives[i]) << " by " << name(algorithm) << ", rank " << rank);
            const Status status =
                calls[i](world[rank], in[static_cast<size_t>(rank)], own, options);
            INFO(status.to_string());
            REQUIRE(status.ok());
          }
          world.synchronize();
          for (size_t r = 0; r < ranks; ++r) {
            direct += was_told(*gpu, in[r]) || was_told(*gpu, out[i * ranks + r]);
            INFO(name(kCollectives[i]) << " by " << name(algorithm) << ", rank " << r);
            CHECK(std::equal(wanted[i * ranks + r].begin(), wanted[i * ranks + r].end(),
                             out[i * ranks + r]));
          }
        }
      }
      for (int rank = 0; rank < size; ++rank) CHECK(world[rank].status().ok());
      CHECK(direct > 0);
      CHECK(gpu->trespasses == 0);
      require_unregistered(world, slabs);
    }
  }
}

TEST_CASE("A peer's memory that is touched at its owner's address is noticed") {
  const auto gpu = make_gpu(2);  // threads of one process, which may
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  for (int rank = 0; rank < 2; ++rank) {
    gpu->belongs_to(static_cast<uint32_t>(rank), slabs.begin(rank), kSlab);
  }
  compare(world, slabs,
          {{.collective = Collective::kAllReduce,
            .count = 100,
            .algorithm = Algorithm::kTwoShotDirect}});
  CHECK(gpu->trespasses > 0);
}

TEST_CASE(
    "Between processes, an operation goes through slots if one rank's buffer is not registered") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 3, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu), plain(world, *gpu);
  require_registered(world, slabs);
  const Call call = chosen_direct(world);
  const auto wanted = on_host({call}, 3);
  for (int apart = 0; apart < 4; ++apart) {  // 3: none
    DYNAMIC_SECTION("rank " << apart) {
      AllPlaced found(1);
      for (int rank = 0; rank < 3; ++rank) {
        const size_t bytes = wanted[0][0].memory().size();
        found[0].emplace_back(call, rank, 3, (rank == apart ? plain : slabs).take(rank, bytes));
      }
      issue_all(world, {call}, found);
      world.synchronize();
      check_all(world, {call}, found, wanted);
      for (auto& each : found[0]) CHECK(was_told(*gpu, each.in()) == (apart == 3));
      CHECK(gpu->trespasses == 0);
    }
  }

  // One whose algorithm is forced cannot do without.
  CallOptions options = world.on_stream(1);
  options.algorithm = Algorithm::kTwoShotDirect;
  std::byte* const memory = plain.begin(1);
  const Status refused =
      world[1].all_reduce(memory, memory, 4096, DataType::kInt32, ReduceOp::kSum, options);
  CHECK(refused.code() == Code::kUnavailable);
  CHECK(refused.message().find("one of rank 1's is not in registered memory") != std::string::npos);
}

TEST_CASE("A buffer that lies in registered memory only in part is not registered") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  for (const Status& status : on_all(world, [&](int rank) {
         return world[rank].register_memory(slabs.begin(rank), kSlab / 2);
       })) {
    REQUIRE(status.ok());
  }
  const Call call = chosen_direct(world);
  const auto wanted = on_host({call}, 2);
  const auto is_told = [&](std::byte* of_rank_1) {
    AllPlaced found(1);
    found[0].emplace_back(call, 0, 2, slabs.begin(0));
    found[0].emplace_back(call, 1, 2, of_rank_1);
    gpu->forget_told();
    issue_all(world, {call}, found);
    world.synchronize();
    check_all(world, {call}, found, wanted);
    return was_told(*gpu, found[0][0].in());
  };
  CHECK(is_told(slabs.begin(1)));
  CHECK_FALSE(is_told(slabs.begin(1) - 8));
  CHECK_FALSE(is_told(slabs.begin(1) + kSlab / 2 - 8));
}

TEST_CASE("A registration that fails on one rank fails on all, and the communicator works on") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  {
    World world(gpu, 3, roomy_config());
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    std::vector<std::byte> host(100);
    gpu->not_for_peers.insert(slabs.begin(1) + 64);
    struct Wrong {
      std::byte* memory;
      size_t bytes;
      Code code;
      const char* text;
    };
    const Wrong wrongs[] = {
        {host.data(), 100, Code::kInvalidArgument, "is not device memory"},
        {nullptr, 100, Code::kInvalidArgument, "are no memory"},
        {slabs.begin(1), 0, Code::kInvalidArgument, "are no memory"},
        {slabs.begin(0), 100, Code::kInvalidArgument, "is on GPU 0, and this communicator's"},
        {slabs.begin(1), kSlab + 1, Code::kInvalidArgument, "exceed their allocation"},
        {slabs.begin(1) + 64, 100, Code::kUnavailable, "comes from a pool (cudaMallocAsync)"}};
    for (const Wrong& wrong : wrongs) {
      const auto statuses = on_all(world, [&](int rank) {
        return rank == 1 ? world[1].register_memory(wrong.memory, wrong.bytes)
                         : world[rank].register_memory(slabs.begin(rank), kSlab);
      });
      for (const Status& status : statuses) {
        INFO(status.to_string());
        CHECK(status.code() == wrong.code);
        CHECK(status.message().find("register_memory: rank 1: ") == 0);
        CHECK(status.message().find(wrong.text) != std::string::npos);
        if (wrong.code == Code::kUnavailable) {
          CHECK(status.message().ends_with("can be registered"));  // nothing is cut off
        }
      }
    }
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(world[rank].unregister_memory(slabs.begin(rank)).code() == Code::kInvalidArgument);
      CHECK_FALSE(is_direct(
          world[rank].plan(Collective::kAllReduce, 4096, DataType::kInt32, true).algorithm));
    }
    compare(world, slabs, {{.collective = Collective::kAllReduce, .count = 4096}});
    require_registered(world, slabs);
    compare(world, slabs, {chosen_direct(world)});
    CHECK_FALSE(gpu->told().empty());
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("A graph's operations are direct at every replay while their memory is registered") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 3, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  const std::vector<Call> calls = {
      chosen_direct(world),
      {.collective = Collective::kAllGather, .count = 5},
      chosen_direct(world),
      {.collective = Collective::kAllReduce, .count = 700, .algorithm = Algorithm::kTwoShotDirect}};
  const auto wanted = on_host(calls, 3);
  AllPlaced found = place(slabs, calls, 3);
  std::vector<FakeGpu::Graph> graphs;
  for (int rank = 0; rank < 3; ++rank) REQUIRE(gpu->begin_capture(world.stream(rank)).ok());
  issue_all(world, calls, found);
  for (int rank = 0; rank < 3; ++rank) {
    graphs.push_back(gpu->end_capture(world.stream(rank)).value());
  }
  const auto replay = [&](bool direct) {
    gpu->forget_told();
    for (auto& ranks : found) {
      for (Placed& each : ranks) each.put();
    }
    for (int rank = 0; rank < 3; ++rank) {
      gpu->replay(graphs[static_cast<size_t>(rank)], world.stream(rank));
    }
    world.synchronize();
    check_all(world, calls, found, wanted);
    CHECK(was_told(*gpu, found[2][1].in()) == direct);
    CHECK(gpu->trespasses == 0);
  };
  for (int i = 0; i < 3; ++i) replay(true);
  // Another registration may have the place of the one that has ended.
  require_unregistered(world, slabs);
  replay(false);
  require_registered(world, slabs);
  replay(false);
  compare(world, slabs, {chosen_direct(world)});
}

TEST_CASE("Buffers of an operation may lie in several registrations, and in others on each rank") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  {
    World world(gpu, 3, roomy_config());
    REQUIRE(world.all_created());
    Slabs first(world, *gpu), second(world, *gpu);
    require_registered(world, first);
    require_registered(world, second);
    require_registered(world, first);  // twice
    const auto at = [&](int rank, bool swapped) {
      return ((rank == 1) != swapped ? second : first).begin(rank);
    };
    for (const bool swapped : {false, true}) {
      const auto data = [&](int rank) { return reinterpret_cast<int32_t*>(at(rank, swapped)); };
      const auto out = [&](int rank) { return reinterpret_cast<int32_t*>(at(rank, !swapped)); };
      CallOptions options;
      options.algorithm = Algorithm::kTwoShotDirect;
      for (int rank = 0; rank < 3; ++rank) {
        for (int i = 0; i < 1000; ++i) data(rank)[i] = i + 7 * rank;
        std::fill_n(out(rank), 1000, -1);
      }
      for (int rank = 0; rank < 3; ++rank) {
        options.stream = world.stream(rank);
        REQUIRE(
            world[rank]
                .all_reduce(data(rank), out(rank), 1000, DataType::kInt32, ReduceOp::kSum, options)
                .ok());
      }
      world.synchronize();
      for (int rank = 0; rank < 3; ++rank) {
        CHECK(world[rank].status().ok());
        bool right = true;
        for (int i = 0; i < 1000; ++i) right = right && out(rank)[i] == 3 * i + 21;
        CHECK(right);
      }
    }
    CHECK(gpu->trespasses == 0);
    require_unregistered(world, first);
    require_unregistered(world, second);
    compare(world, first, {chosen_direct(world)});  // still registered once
    CHECK(was_told(*gpu, first.begin(0)));
    require_unregistered(world, first);
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Memory of device_alloc is freed once, and not while it is registered") {
  const auto gpu = make_gpu();
  {
    const Installed installed(gpu);
    World world(gpu, 2);
    REQUIRE(world.all_created());
    CHECK(device_free(nullptr).ok());
    CHECK(device_alloc(100, 2).status().code() == Code::kUnavailable);
    CHECK(device_alloc(100, -1).status().code() == Code::kUnavailable);
    auto empty = device_alloc(0, 1);
    REQUIRE(empty.ok());
    CHECK(*empty != nullptr);
    CHECK(device_free(static_cast<std::byte*>(*empty) + 1).code() == Code::kInvalidArgument);
    CHECK(device_free(*empty).ok());
    CHECK(device_free(*empty).code() == Code::kInvalidArgument);
    {
      Slabs slabs(world, *gpu);
      require_registered(world, slabs);
      const Status refused = device_free(slabs.begin(0) - kBefore);
      INFO(refused.to_string());
      CHECK(refused.code() == Code::kInvalidArgument);
      CHECK(refused.message().find("still registered") != std::string::npos);
      require_unregistered(world, slabs);
    }
    // Not on a device, or in a group.
    Config config;
    config.rank = 0;
    config.world_size = 1;
    auto host = Communicator::create(config);
    REQUIRE(host.ok());
    int data = 0;
    CHECK(host->register_memory(&data, sizeof data).code() == Code::kInvalidArgument);
    CHECK(host->unregister_memory(&data).code() == Code::kInvalidArgument);
    REQUIRE(world[0].group_start().ok());
    CHECK(world[0].register_memory(&data, sizeof data).code() == Code::kInvalidArgument);
    REQUIRE(world[0].group_end().ok());
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Threads of one process register, too, and GPUs without access to each other refuse") {
  {
    const auto gpu = make_gpu(2);
    const Installed installed(gpu);
    World world(gpu, 2, roomy_config());
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    const size_t alive = gpu->alive();
    require_registered(world, slabs);
    CHECK(gpu->alive() == alive);  // nothing to import
    compare(world, slabs, {chosen_direct(world)});
    require_unregistered(world, slabs);
    compare(world, slabs, {chosen_direct(world)});
  }
  const auto gpu = make_gpu();
  gpu->peers.clear();
  const Installed installed(gpu);
  World world(gpu, 2, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(world[rank].register_memory(slabs.begin(rank), kSlab).code() == Code::kUnavailable);
  }
  compare(world, slabs, {{.collective = Collective::kAllReduce, .count = 4096}});
}

TEST_CASE("Whichever call of CUDA fails while memory is registered, all ranks learn of it") {
  constexpr int kMany = 200'000;  // so many that the choice is a direct algorithm
  int calls = 0;
  for (int fail_at = -1; fail_at < calls || fail_at < 0; ++fail_at) {
    const auto gpu = make_gpu();
    bool told = false, right = true;
    {
      const Installed installed(gpu);
      World world(gpu, 2, roomy_config());
      REQUIRE(world.all_created());
      Slabs slabs(world, *gpu);
      gpu->calls = 0;
      gpu->fail_at = fail_at;
      const auto statuses = on_all(
          world, [&](int rank) { return world[rank].register_memory(slabs.begin(rank), kSlab); });
      INFO("call " << fail_at << ": " << statuses[0].to_string() << "; "
                   << statuses[1].to_string());
      CHECK(statuses[0].ok() == statuses[1].ok());
      told = !statuses[0].ok();
      const auto data = [&](int rank) { return reinterpret_cast<int32_t*>(slabs.begin(rank)); };
      for (int rank = 0; rank < 2; ++rank) {
        std::fill_n(data(rank), kMany, rank + 1);
      }
      for (int rank = 0; rank < 2; ++rank) {
        told = !world[rank]
                    .all_reduce(data(rank), data(rank), kMany, DataType::kInt32, ReduceOp::kSum,
                                world.on_stream(rank))
                    .ok() ||
               told;
      }
      world.synchronize();
      for (int rank = 0; rank < 2; ++rank) {
        told = told || !world[rank].status().ok();
        for (int i = 0; i < kMany; ++i) right = right && data(rank)[i] == 3;
      }
      for (int rank = 0; rank < 2; ++rank) {
        (void)world[rank].unregister_memory(slabs.begin(rank));
        (void)world[rank].status();
      }
      if (fail_at < 0) {
        calls = gpu->calls;
        CHECK(was_told(*gpu, slabs.begin(0)));
        CHECK_FALSE(told);
      }
      gpu->fail_at = -1;
      world.leave(0);
      world.leave(1);
    }
    INFO("call " << fail_at << " of " << calls);
    CHECK(gpu->alive() == 0);
    CHECK(gpu->freed_while_imported == 0);
    CHECK(gpu->trespasses == 0);
    CHECK((told || right));
    REQUIRE(calls > 30);
  }
}

}  // namespace
}  // namespace rondo::device::test
