// What a communicator on a device refuses, and what it says and leaves behind when something goes
// wrong: calls that differ, ranks that do not come, abort, CUDA's errors.
#include <algorithm>
#include <barrier>
#include <csignal>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/world.hpp"

namespace rondo::device::test {
namespace {

Status all_reduce(World& world, int rank, std::vector<int32_t>& data, size_t count) {
  return world[rank].all_reduce(data.data(), data.data(), count, DataType::kInt32, ReduceOp::kSum,
                                world.on_stream(rank));
}

constexpr uint64_t kImpatient = 1'000'000'000;  // each look is a second of a kernel's time

TEST_CASE("Without a device it is said why there is none") {
  Config config;
  config.rank = 0;
  config.world_size = 1;
  config.device = 4711;  // nobody has so many
  const auto made = Communicator::create(config);
  REQUIRE_FALSE(made.ok());
  CHECK_FALSE(made.status().message().empty());
  CHECK((made.status().code() == Code::kUnavailable ||
         made.status().code() == Code::kInvalidArgument));
}

TEST_CASE("Some ranks with a device and some without are refused, and a number that is none") {
  const TempDirectory directory;
  std::vector<std::thread> threads;
  Status statuses[2];
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Config config = testing::world_config(directory.path(), rank, 2);
      config.device = rank - 1;
      statuses[rank] = Communicator::create(config).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    says(status, "Config::device is -1 on rank 0 and 0 on rank 1");
  }
  Config config;
  config.device = -2;
  CHECK(Communicator::create(config).status().code() == Code::kInvalidArgument);
}

TEST_CASE("What a communicator on a device does not have is refused by name, and it works on") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<int32_t> data(4);
  Communicator& c = world[0];
  CHECK(c.device() == 0);
  says(c.recv_async(data.data(), 4, DataType::kInt32, 1).status(), "has no asynchronous calls");
  says(c.all_reduce_async(data.data(), data.data(), 4, DataType::kInt32).status(),
       "has no asynchronous calls");
  says(c.barrier(), "Give every rank a stream");
  says(c.send(data.data(), 4, DataType::kInt32, 1), "Give every rank a stream");
  REQUIRE(c.group_start().ok());
  for (size_t i = 0; i <= engine::DeviceGroup::kMostMessages; ++i) {
    REQUIRE(c.send(data.data(), 4, DataType::kInt32, 1, world.on_stream(0)).ok());
  }
  says(c.group_end(), "a group of 129 messages; on a device at most 128 are possible");
  REQUIRE(c.group_start().ok());
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(c.send(data.data(), 4, DataType::kInt32, 1, world.on_stream(rank)).ok());
  }
  says(c.group_end(), "the messages of a group are on several streams");
  for (int rank = 0; rank < 2; ++rank) REQUIRE(all_reduce(world, rank, data, 0).ok());
  world.synchronize();
  CHECK(c.status().ok());

  Config config;
  config.rank = 0;
  config.world_size = 1;
  auto host = Communicator::create(config);
  REQUIRE(host.ok());
  says(host->barrier(world.on_stream(0)), "is for communicators on a device");
  says(host->send(data.data(), 4, DataType::kInt32, 0, world.on_stream(0)),
       "is for communicators on a device");
}

TEST_CASE("Without a number a rank takes sixteen thread blocks, or what it is given as the most") {
  const auto gpu = std::make_shared<FakeGpu>(1, 132);
  const Installed installed(gpu);
  for (const auto& [size, most, expected] :
       {std::tuple{1, 0, 16}, {2, 0, 16}, {2, 64, 16}, {1, 64, 33}, {2, 3, 3}, {8, 0, 4}}) {
    Config config = small_config();
    config.channels = 0;
    config.most_channels = most;
    World world(gpu, size, config);
    REQUIRE(world.all_created());
    INFO(size << " ranks, at most " << most);
    const auto channels = [](const Communicator& of) {
      return of.plan(Collective::kAllReduce, 1 << 20, DataType::kInt32).channels;
    };
    CHECK(channels(world[0]) == expected);
    if (size > 1) continue;
    const auto part = world[0].split(0, 0);  // of what the first one has left
    REQUIRE(part.ok());
    CHECK(channels(**part) == std::min(expected, (132 - expected) / 4));
  }
}

TEST_CASE("The most blocks that rank 0 wants hold for all ranks") {
  const auto gpu = std::make_shared<FakeGpu>(1, 132);
  const Installed installed(gpu);
  const TempDirectory directory;
  int channels[2] = {};
  const auto rank_of = [&](int rank) {
    Config config = config_of(directory, rank, 2, small_config());
    config.channels = 0;
    config.most_channels = rank == 0 ? 5 : 7;
    const auto made = Communicator::create(config);
    if (!made.ok()) return;
    channels[rank] = made->plan(Collective::kAllReduce, 1 << 20, DataType::kInt32).channels;
  };
  std::thread other(rank_of, 1);
  rank_of(0);
  other.join();
  CHECK(channels[0] == 5);
  CHECK(channels[1] == 5);
}

TEST_CASE(
    "Thread blocks that do not fit together are refused, those of other communicators included") {
  const auto gpu = std::make_shared<FakeGpu>(1, 5);
  const Installed installed(gpu);
  {
    Config config = small_config();
    config.channels = 3;
    World crowd(gpu, 2, config);
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(crowd.created(rank).code() == Code::kUnavailable);
      says(crowd.created(rank), "at most 2 channels");
    }
    World fits(gpu, 2);
    REQUIRE(fits.all_created());
    World second(gpu, 2);
    says(second.created(0), "other communicators may take 4");
    World alone(gpu, 1, [] {
      Config one = small_config();
      one.channels = 1;
      return one;
    }());
    CHECK(alone.all_created());
  }
  {
    World again(gpu, 2);
    CHECK(again.all_created());
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Ranks that call different things are told which, all of them") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  for (const bool other_collective : {false, true}) {
    World world(gpu, 3);
    REQUIRE(world.all_created());
    gpu->ns_per_look = kImpatient;  // some ranks may wait for what never comes
    std::vector<int32_t> data[3] = {std::vector<int32_t>(300), std::vector<int32_t>(300),
                                    std::vector<int32_t>(300)};
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == 2 && other_collective) {
        REQUIRE(world[rank].barrier(world.on_stream(rank)).ok());
      } else {
        REQUIRE(all_reduce(world, rank, data[rank], rank == 2 ? 50 : 100).ok());
      }
    }
    world.synchronize();
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(world[rank].status().code() == Code::kMismatch);
      says(world[rank].status(), "rank 2 called");
      says(world[rank].status(), "called all_reduce(int32, sum, count 100)");
      says(world[rank].status(), "operation 1");
      CHECK(all_reduce(world, rank, data[rank], 1).code() == Code::kMismatch);
    }
    gpu->ns_per_look = 0;
  }
}

TEST_CASE("A rank that never comes is named, with the operation and the step") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  std::vector<int32_t> data[3] = {std::vector<int32_t>(300), std::vector<int32_t>(300),
                                  std::vector<int32_t>(300)};
  for (int rank = 0; rank < 3; ++rank) REQUIRE(all_reduce(world, rank, data[rank], 7).ok());
  world.synchronize();
  gpu->ns_per_look = kImpatient;
  for (int rank = 0; rank < 2; ++rank) REQUIRE(all_reduce(world, rank, data[rank], 300).ok());
  world.synchronize();
  for (int rank = 0; rank < 3; ++rank) {
    // Rank 2's own kernels have reported nothing; it learns what the others have found.
    const Status status = world[rank].status();
    CHECK(status.code() == Code::kTimeout);
    says(status, "all_reduce(int32, sum, count 300) (operation 2) has not moved");
    says(status, "in step ");
    says(status, "rank 2 (pid ");
    says(status, "has not called it; its last operation is 1");
  }
  CHECK(all_reduce(world, 2, data[2], 300).code() == Code::kTimeout);
}

TEST_CASE("abort() ends kernels that wait, on every rank") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  std::vector<int32_t> data(300);
  REQUIRE(all_reduce(world, 0, data, 300).ok());
  CHECK_FALSE(gpu->idle(world.stream(0)));
  world[1].abort("enough");
  world.synchronize();
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(world[rank].status().code() == Code::kAborted);
    says(world[rank].status(), "rank 1 aborted: enough");
  }
}

TEST_CASE("Who is destroyed while its kernel waits stops it first, and all memory comes back") {
  const auto gpu = std::make_shared<FakeGpu>();
  {
    const Installed installed(gpu);
    Config config = small_config();
    config.timeout = std::chrono::milliseconds(1);
    World world(gpu, 2, config);
    REQUIRE(world.all_created());
    std::vector<int32_t> data(300);
    REQUIRE(all_reduce(world, 0, data, 300).ok());
    world.leave(0);
    CHECK(gpu->idle(world.stream(0)));
    says(world[1].status(), "rank 0 was destroyed before its operations had ended");
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("A rank that is destroyed while a graph is replayed ends the replay first") {
  const auto gpu = std::make_shared<FakeGpu>();
  {
    const Installed installed(gpu);
    Config config = small_config();
    config.timeout = std::chrono::milliseconds(1);
    World world(gpu, 2, config);
    REQUIRE(world.all_created());
    std::vector<int32_t> data(300);
    REQUIRE(gpu->begin_capture(world.stream(0)).ok());
    REQUIRE(all_reduce(world, 0, data, 300).ok());
    const FakeGpu::Graph graph = gpu->end_capture(world.stream(0)).value();
    gpu->replay(graph, world.stream(0));
    world.leave(0);
    CHECK(gpu->idle(world.stream(0)));
    says(world[1].status(), "rank 0 was destroyed before its operations had ended");
    CHECK(gpu->destroy_graph(graph).ok());
  }
  CHECK(gpu->alive() == 0);
}

// While another thread captures, CUDA refuses to say when the device is idle.
TEST_CASE("A rank that is destroyed during a replay and another capture frees nothing before") {
  const auto gpu = std::make_shared<FakeGpu>();
  {
    const Installed installed(gpu);
    Config config = small_config();
    config.timeout = std::chrono::milliseconds(1);
    World world(gpu, 2, config);
    REQUIRE(world.all_created());
    std::vector<int32_t> data(300);
    REQUIRE(gpu->begin_capture(world.stream(0)).ok());
    REQUIRE(all_reduce(world, 0, data, 300).ok());
    const FakeGpu::Graph graph = gpu->end_capture(world.stream(0)).value();
    std::atomic<bool> captures{false};
    std::thread other([&] {
      const Stream stream = gpu->create_stream().value();
      CHECK(gpu->begin_capture(stream).ok());
      captures = true;
      // Long enough for a rank that did not wait to be gone, and its kernel not to be.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      CHECK_FALSE(gpu->end_capture(stream).ok());
      CHECK(gpu->destroy_stream(stream).ok());
    });
    while (!captures) std::this_thread::yield();
    gpu->replay(graph, world.stream(0));
    world.leave(0);
    CHECK(gpu->idle(world.stream(0)));
    other.join();
    CHECK(gpu->destroy_graph(graph).ok());
  }
  CHECK(gpu->alive() == 0);
}

// cudaSetDevice() makes a context on the device at once, and so does the first call on a thread's
// current device: half a gigabyte of each, for every process there is.
TEST_CASE("A communicator leaves nothing on a device that is only the threads' current one") {
  const auto gpu = std::make_shared<FakeGpu>(2);
  {
    const Installed installed(gpu);
    const TempDirectory directory;
    std::vector<std::optional<Communicator>> made(2);
    const auto on_new_threads = [](const std::function<void(int rank)>& body) {
      std::vector<std::thread> threads;
      for (int rank = 0; rank < 2; ++rank) threads.emplace_back(body, rank);
      for (std::thread& thread : threads) thread.join();
    };
    on_new_threads([&](int rank) {
      Config config = config_of(directory, rank, 2, small_config());
      config.device = 1;
      auto communicator = Communicator::create(config);
      if (communicator.ok()) made[static_cast<size_t>(rank)] = std::move(*communicator);
    });
    REQUIRE((made[0] && made[1]));
    std::barrier both(2);
    on_new_threads([&](int rank) {
      Communicator& own = *made[static_cast<size_t>(rank)];
      CallOptions options;
      {
        const DeviceScope scope(*gpu, 1);
        options.stream = gpu->create_stream().value();
      }
      std::vector<int32_t> data(300, 1);
      const auto sum = [&] {
        return own.all_reduce(data.data(), data.data(), data.size(), DataType::kInt32,
                              ReduceOp::kSum, options);
      };
      CHECK(sum().ok());
      gpu->drain(options.stream);
      CHECK(data == std::vector<int32_t>(300, 2));
      void* graph = nullptr;
      {
        const DeviceScope scope(*gpu, 1);
        CHECK(gpu->begin_capture(options.stream, CudaCalls::kThreadLocal).ok());
        CHECK(sum().ok());
        graph = gpu->end_capture(options.stream).value();
      }
      CHECK(own.status().ok());
      std::thread([&] { CHECK(own.status().ok()); }).join();
      CHECK(gpu->destroy_graph(graph).ok());
      both.arrive_and_wait();  // the end of one that has captured ends others' captures
      made[static_cast<size_t>(rank)].reset();
      CHECK(gpu->destroy_stream(options.stream).ok());
    });
    void* memory = nullptr;
    std::thread([&] { memory = device_alloc(64, 1).value(); }).join();
    std::thread([&] { CHECK(device_free(memory).ok()); }).join();
  }
  CHECK(gpu->contexts() == std::set<int>{1});
  CHECK(gpu->alive() == 0);
}

TEST_CASE("A capture in another thread survives a communicator's whole life") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  const Stream stream = gpu->create_stream().value();
  REQUIRE(gpu->begin_capture(stream).ok());  // forbids other threads what may wait
  std::thread([&] {
    {
      World world(gpu, 2);
      INFO(world.created(0).to_string());
      CHECK(world.all_created());
      if (!world.all_created()) return;
      std::vector<int32_t> data[2];
      for (int rank = 0; rank < 2; ++rank) {
        data[rank].assign(300, 1);
        CHECK(all_reduce(world, rank, data[rank], 300).ok());
      }
      world.synchronize();
      for (int rank = 0; rank < 2; ++rank) {
        CHECK(world[rank].status().ok());
        CHECK(data[rank] == std::vector<int32_t>(300, 2));
      }
    }
    const auto memory = device_alloc(64, 0);
    CHECK(memory.ok());
    if (memory.ok()) CHECK(device_free(*memory).ok());
  }).join();
  CHECK(gpu->destroy_graph(gpu->end_capture(stream).value()).ok());
  CHECK(gpu->destroy_stream(stream).ok());
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Memory that peers still use outlives the rank that it belongs to") {
  const auto gpu = std::make_shared<FakeGpu>();
  {
    const Installed installed(gpu);
    World world(gpu, 2);
    REQUIRE(world.all_created());
    // The root has sent all when it ends, and does not wait until its peer has taken it.
    std::vector<int32_t> from(4, 9), to(4);
    CallOptions options = world.on_stream(0);
    options.algorithm = Algorithm::kRing;
    gpu->hold(world.stream(1));
    REQUIRE(world[0].broadcast(from.data(), from.data(), 4, DataType::kInt32, 0, options).ok());
    options.stream = world.stream(1);
    REQUIRE(world[1].broadcast(nullptr, to.data(), 4, DataType::kInt32, 0, options).ok());
    REQUIRE(gpu->synchronize(world.stream(0)).ok());
    world.leave(0);
    gpu->let_go(world.stream(1));
    world.synchronize();
    CHECK(to == from);
    CHECK(world[1].status().ok());
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("A rank that leaves before its peers have finished is named") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<int32_t> data(300);
  REQUIRE(all_reduce(world, 0, data, 300).ok());
  world.leave(1);
  const Status status = world[0].status();
  CHECK(status.code() == Code::kPeerDied);
  says(status, "rank 1 left the communicator after operation 0");
  world.synchronize();
}

TEST_CASE(
    "Whichever call of CUDA fails, somebody is told, nobody hangs, and nothing is left behind") {
  const bool apart = GENERATE(false, true);  // GPUs that only meet in host memory
  int calls = 0;
  for (int fail_at = -1; fail_at < calls || fail_at < 0; ++fail_at) {
    const auto gpu = std::make_shared<FakeGpu>(2);
    if (apart) gpu->peers.clear();
    gpu->fail_at = fail_at;
    bool told = false, right = true;
    const auto hear = [&](const Status& status) {
      told = told || !status.ok();
      if (status.message().find("told to fail") != std::string::npos) says(status, " on GPU ");
    };
    {
      const Installed installed(gpu);
      World world(gpu, 2);
      for (int rank = 0; rank < 2; ++rank) told = told || !world.created(rank).ok();
      if (world.all_created()) {
        std::vector<int32_t> data[2] = {std::vector<int32_t>(300, 1), std::vector<int32_t>(300, 2)};
        for (int i = 0; i < 2; ++i) {
          for (int rank = 0; rank < 2; ++rank) hear(all_reduce(world, rank, data[rank], 300));
        }
        for (int rank = 0; rank < 2; ++rank) hear(world[rank].status());
        world.synchronize();
        for (int rank = 0; rank < 2; ++rank) {
          hear(world[rank].status());
          right = right && data[rank] == std::vector<int32_t>(300, 6);
        }
      }
      if (fail_at < 0) calls = gpu->calls;
    }
    INFO("call " << fail_at << " of " << calls << (apart ? ", apart" : ""));
    CHECK(gpu->alive() == 0);
    CHECK((told || right));
    if (fail_at < 0) {
      CHECK_FALSE(told);
      REQUIRE(calls > 50);
    }
  }
}

#if !defined(__SANITIZE_THREAD__)
// Two processes, whose segments lie in host memory: the stand-in has no other that they share.
TEST_CASE("A rank that dies while others replay a graph is found, and the replay ends") {
  const TempDirectory directory;
  testing::ForkGang gang(2, [&](int rank, testing::Link& link) {
    const auto gpu = std::make_shared<FakeGpu>(2);
    gpu->peers.clear();
    const Installed installed(gpu);
    Config config = testing::world_config(directory.path(), rank, 2, small_config());
    config.device = rank;
    const Stream stream = *gpu->create_stream();
    {
      auto made = Communicator::create(config);
      testing::expect_ok(made.status(), "create");
      std::vector<int32_t> data(300);
      CallOptions options;
      options.stream = stream;
      testing::expect_ok(gpu->begin_capture(stream), "beginning a capture");
      testing::expect_ok(made->all_reduce(data.data(), data.data(), data.size(), DataType::kInt32,
                                          ReduceOp::kSum, options),
                         "capturing");
      const FakeGpu::Graph graph = gpu->end_capture(stream).value();
      testing::expect_ok(made->status(), "while all ranks live");
      if (rank == 0) gpu->replay(graph, stream);
      link.announce("ready");
      if (rank == 1) link.await("nothing");
      // Before anybody calls status(): the kernel has no limit here.
      testing::await("the replay ends", [&] { return gpu->idle(stream); });
      const Status status = made->status();
      testing::expect(status.code() == Code::kPeerDied, status.to_string());
      const std::string wanted = "ended while graphs hold operations of rank 0; found by rank 0";
      testing::expect(status.message().find(wanted) != std::string::npos, status.to_string());
    }
    testing::expect_ok(gpu->destroy_stream(stream), "destroying the stream");
  });
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "ready");
  gang.kill(1, SIGKILL);
  const auto results = gang.join();
  INFO(results[0].message);
  CHECK(results[0].ok);
}
#endif

}  // namespace
}  // namespace rondo::device::test
