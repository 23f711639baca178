// What a communicator on a device refuses, and what it says and leaves behind when something goes
// wrong: calls that differ, ranks that do not come, abort, CUDA's errors.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/device/device_runner.hpp"
#include "tests/comm/device/alone.hpp"
#include "tests/comm/engine/board_memory.hpp"

namespace rondo::device::test {
namespace {

constexpr uint64_t kImpatient = 1'000'000'000;  // each look is a second of a kernel's time

Config alone_on_host() {
  Config config;
  config.rank = 0;
  config.world_size = 1;
  return config;
}

TEST_CASE("Without a device it is said why there is none") {
  Config config = alone_on_host();
  config.device = 4711;  // nobody has so many
  const Status status = Communicator::create(config).status();
  CHECK_FALSE(status.message().empty());
  CHECK((status.code() == Code::kUnavailable || status.code() == Code::kInvalidArgument));
}

TEST_CASE("Some ranks with a device and some without are refused, and a number that is none") {
  const TempDirectory directory;
  Status statuses[2];
  on_threads(2, [&](int rank) {
    Config config = testing::world_config(directory.path(), rank, 2);
    config.device = rank - 1;
    statuses[rank] = Communicator::create(config).status();
  });
  for (const Status& status : statuses) {
    says(status, "Config::device is -1 on rank 0 and 0 on rank 1");
  }
  Config config;
  config.device = -2;
  check_failed(Communicator::create(config).status(), Code::kInvalidArgument);
}

TEST_CASE("What a communicator on a device does not have is refused by name, and it works on") {
  Rig world(2);
  Ints data(4);
  Communicator& c = world[0];
  CHECK(c.device() == 0);
  const auto send = [&](const CallOptions& options) {
    return c.send(data.data(), 4, DataType::kInt32, 1, options);
  };
  says(c.recv_async(data.data(), 4, DataType::kInt32, 1).status(), "has no asynchronous calls");
  says(c.all_reduce_async(data.data(), data.data(), 4, DataType::kInt32).status(),
       "has no asynchronous calls");
  says(c.barrier(), "Give every rank a stream");
  says(send({}), "Give every rank a stream");
  for (const Status& status :
       {c.send(data.data(), 1, DataType::kInt32, 1, 1, world.on_stream(0)),
        c.recv(data.data(), 1, DataType::kInt32, kAnySource, 0, nullptr, world.on_stream(0)),
        c.probe(1, 0, world.on_stream(0)).status()}) {
    check_failed(status, Code::kUnavailable, {"messages on a device have no tags"});
  }
  must(c.group_start());
  for (size_t i = 0; i <= engine::DeviceGroup::kMostMessages; ++i) must(send(world.on_stream(0)));
  says(c.group_end(), "a group of 129 messages; on a device at most 128 are possible");
  must(c.group_start());
  for (int rank = 0; rank < 2; ++rank) must(send(world.on_stream(rank)));
  says(c.group_end(), "the messages of a group are on several streams");
  Ints nothing;
  for (int rank = 0; rank < 2; ++rank) must(sum(world, rank, nothing));
  finish(world);

  auto host = Communicator::create(alone_on_host()).value();
  says(host.barrier(world.on_stream(0)), "is for communicators on a device");
  says(host.send(data.data(), 4, DataType::kInt32, 0, world.on_stream(0)),
       "is for communicators on a device");
}

TEST_CASE("Without a number a rank takes sixteen thread blocks, or what it is given as the most") {
  const auto channels = [](const Communicator& of) {
    return of.plan(Collective::kAllReduce, 1 << 20, DataType::kInt32).channels;
  };
  for (const auto& [size, most, expected] :
       {std::tuple{1, 0, 16}, {2, 0, 16}, {2, 64, 16}, {1, 64, 33}, {2, 3, 3}, {8, 0, 4}}) {
    Setup setup = {.gpu = std::make_shared<FakeGpu>(1, 132)};
    setup.config.channels = 0;
    setup.config.max_channels = most;
    Rig world(size, setup);
    INFO(size << " ranks, at most " << most);
    CHECK(channels(world[0]) == expected);
    if (size > 1) continue;
    const auto part = world[0].split(0, 0).value();  // of what the first one has left
    CHECK(channels(*part) == std::min(expected, (132 - expected) / 4));
  }

  // What rank 0 wants as the most holds for all ranks.
  const OnGpu on(std::make_shared<FakeGpu>(1, 132));
  const TempDirectory directory;
  int taken[2] = {};
  on_threads(2, [&](int rank) {
    Config config = config_of(directory, rank, 2, small_config());
    config.channels = 0;
    config.max_channels = rank == 0 ? 5 : 7;
    const auto made = Communicator::create(config);
    if (made.ok()) taken[rank] = channels(*made);
  });
  for (const int each : taken) CHECK(each == 5);
}

TEST_CASE(
    "Thread blocks that do not fit together are refused, those of other communicators included") {
  const OnGpu on(std::make_shared<FakeGpu>(1, 5));
  {
    Config config = small_config();
    config.channels = 3;
    World crowd(on.gpu, 2, config);
    for (int rank = 0; rank < 2; ++rank) {
      check_failed(crowd.created(rank), Code::kUnavailable, {"at most 2 channels"});
    }
    World fits(on.gpu, 2);
    must(fits.created(0));
    World second(on.gpu, 2);
    says(second.created(0), "other communicators may take 4");
    config.channels = 1;
    World alone(on.gpu, 1, config);
    must(alone.created(0));
  }
  World again(on.gpu, 2);
  must(again.created(0));
}

TEST_CASE("Ranks that call different things are told which, all of them") {
  for (const bool other_collective : {false, true}) {
    Rig world(3);
    world.gpu->ns_per_look = kImpatient;  // some ranks may wait for what never comes
    Ints data[] = {Ints(100), Ints(100), Ints(50)};
    for (int rank = 0; rank < 3; ++rank) {
      must(rank == 2 && other_collective ? world[rank].barrier(world.on_stream(rank))
                                         : sum(world, rank, data[rank]));
    }
    world.synchronize();
    check_all_failed(world, Code::kMismatch,
                     {"rank 2 called", "called all_reduce(int32, sum, count 100)", "operation 1"});
    for (int rank = 0; rank < 3; ++rank) {
      check_failed(sum(world, rank, data[rank]), Code::kMismatch);
    }
  }
}

TEST_CASE("A rank that never comes is named, with the operation and the step") {
  Rig world(3);
  Ints few[3], many[3];
  for (int rank = 0; rank < 3; ++rank) {
    few[rank].resize(7);
    many[rank].resize(300);
    must(sum(world, rank, few[rank]));
  }
  world.synchronize();
  world.gpu->ns_per_look = kImpatient;
  for (int rank = 0; rank < 2; ++rank) must(sum(world, rank, many[rank]));
  world.synchronize();
  // Rank 2's own kernels have reported nothing; it learns what the others have found.
  check_all_failed(world, Code::kTimeout,
                   {"all_reduce(int32, sum, count 300) (operation 2) has not moved", "in step ",
                    "rank 2 (pid ", "has not called it; its last operation is 1"});
  check_failed(sum(world, 2, many[2]), Code::kTimeout);
}

TEST_CASE("Of ranks that wait for each other, the one whose kernel has not begun is named") {
  Rig world(4);
  world.gpu->ns_per_look = kImpatient / 1000;  // all that can begin have, before one gives up
  world.gpu->hold(world.stream(2));
  Ints data[4];
  for (int rank = 0; rank < 4; ++rank) {
    data[rank].resize(300);
    must(sum(world[rank], data[rank], world.on_stream(rank, Algorithm::kRing)));
  }
  for (const int rank : {0, 1, 3}) must(world.gpu->synchronize(world.stream(rank)));
  check_failed(world[0].status(), Code::kTimeout,
               {"all_reduce(int32, sum, count 300) by ring (operation 1) has not moved",
                "rank 2 has called it, but its kernel makes no progress"});
  world.gpu->let_go(world.stream(2));
  world.synchronize();
}

TEST_CASE("A kernel's report and the rows of ranks on another host make one chain") {
  auto control =
      transport::Segment::create("reports-test", (ProcessMemory::control_bytes(3) + 4095) & ~4095u);
  REQUIRE(control.ok());
  const auto memory = ProcessMemory::open(gpus(1), std::move(*control), 3).value();
  const board::BoardMemory rows(3);
  const board::Places places{.hosts = base::HostMap({0, 1, 1}), .names = {"a", "b"}};
  std::list<board::Board> boards;
  for (int rank = 0; rank < 3; ++rank) {
    boards.emplace_back(rows.base(), 3, rank, "", places);
    boards.back().post(1, board::all_reduce_call(9), {}, {});
  }
  board::Watch watch(boards.front(), [](int) { return -1; });
  boards.back().show_wait(1, 0, 0, 1);  // as rank 2 does when its kernel has reported
  engine::DeviceReport& report = memory->control(0).reports[0];
  report.ended = engine::DeviceReport::kTimeout;
  report.awaited = engine::DeviceReport::kSlot;
  report.peer = 2;
  report.sequence = report.whole = 1;
  says(explain_reports(*memory, 1, boards.front(), watch),
       "whose kernel waits for data of rank 2 in step 0 of round 0: rank 1 has called it, but its");
}

TEST_CASE("abort() ends kernels that wait, on every rank") {
  Rig world(3);
  Ints data(300);
  must(sum(world, 0, data));
  CHECK_FALSE(world.gpu->idle(world.stream(0)));
  world[1].abort("enough");
  world.synchronize();
  check_all_failed(world, Code::kAborted, {"rank 1 aborted: enough"});
}

/// Rank 0 is destroyed while its kernel waits for rank 1: the kernel ends first.
void leave_early(Rig& world) {
  world.leave(0);
  CHECK(world.gpu->idle(world.stream(0)));
  says(world[1].status(), "rank 0 was destroyed before its operations had ended");
}

TEST_CASE("A rank that is destroyed while its kernel waits ends it first, also in a replay") {
  const bool replayed = GENERATE(false, true);
  Rig world(2, {.config = small_config(std::chrono::milliseconds(1))});
  Ints data(300);
  if (!replayed) {
    must(sum(world, 0, data));
    leave_early(world);
    return;
  }
  Captured graph(*world.gpu, world.stream(0), [&] { must(sum(world, 0, data)); });
  graph.replay();
  leave_early(world);
}

// While another thread captures, CUDA refuses to say when the device is idle.
TEST_CASE("A rank that is destroyed during a replay and another capture frees nothing before") {
  Rig world(2, {.config = small_config(std::chrono::milliseconds(1))});
  FakeGpu& gpu = *world.gpu;
  Ints data(300);
  Captured graph(gpu, world.stream(0), [&] { must(sum(world, 0, data)); });
  const Stream stream = world.add_stream();
  std::atomic<bool> captures{false};
  std::thread other([&] {
    CHECK(gpu.begin_capture(stream).ok());
    captures = true;
    // Long enough for a rank that did not wait to be gone, and its kernel not to be.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    CHECK_FALSE(gpu.end_capture(stream).ok());
  });
  while (!captures) std::this_thread::yield();
  graph.replay();
  leave_early(world);
  other.join();
}

// cudaSetDevice() makes a context on the device at once, and so does the first call on a thread's
// current device: half a gigabyte of each, for every process there is.
TEST_CASE("A communicator leaves nothing on a device that is only the threads' current one") {
  const OnGpu on(gpus());
  FakeGpu& gpu = *on.gpu;
  const TempDirectory directory;
  std::optional<Communicator> made[2];
  on_threads(2, [&](int rank) {
    Config config = config_of(directory, rank, 2, small_config());
    config.device = 1;
    auto communicator = Communicator::create(config);
    if (communicator.ok()) made[rank] = std::move(*communicator);
  });
  REQUIRE((made[0] && made[1]));
  std::barrier both(2);
  on_threads(2, [&](int rank) {
    Communicator& own = *made[rank];
    CallOptions options;
    {
      const DeviceScope scope(gpu, 1);
      options.stream = gpu.create_stream().value();
    }
    Ints data(300, 1);
    CHECK(sum(own, data, options).ok());
    gpu.drain(options.stream);
    CHECK(data == Ints(300, 2));
    void* graph = nullptr;
    {
      const DeviceScope scope(gpu, 1);
      CHECK(gpu.begin_capture(options.stream, CudaCalls::kThreadLocal).ok());
      CHECK(sum(own, data, options).ok());
      graph = gpu.end_capture(options.stream).value();
    }
    CHECK(own.status().ok());
    std::thread([&] { CHECK(own.status().ok()); }).join();
    CHECK(gpu.destroy_graph(graph).ok());
    both.arrive_and_wait();  // the end of one that has captured ends others' captures
    made[rank].reset();
    CHECK(gpu.destroy_stream(options.stream).ok());
  });
  void* memory = nullptr;
  std::thread([&] { memory = device_alloc(64, 1).value(); }).join();
  std::thread([&] { CHECK(device_free(memory).ok()); }).join();
  CHECK(gpu.contexts() == std::set<int>{1});
}

TEST_CASE("A capture in another thread survives a communicator's whole life") {
  const OnGpu on(gpus(1));
  const Stream stream = on.gpu->create_stream().value();
  {
    // It forbids other threads what may wait.
    const Captured capture(*on.gpu, stream, [&] {
      std::thread([&] {
        World world(on.gpu, 2);
        INFO(world.created(0).to_string());
        CHECK(world.all_created());
        if (!world.all_created()) return;
        Ints data[2] = {Ints(300, 1), Ints(300, 1)};
        for (int rank = 0; rank < 2; ++rank) CHECK(sum(world, rank, data[rank]).ok());
        finish(world);
        for (const Ints& each : data) CHECK(each == Ints(300, 2));
        const auto memory = device_alloc(64, 0);
        CHECK((memory.ok() && device_free(*memory).ok()));
      }).join();
    });
  }
  must(on.gpu->destroy_stream(stream));
}

TEST_CASE("Memory that peers still use outlives the rank that it belongs to") {
  Rig world(2);
  // The root has sent all when it ends, and does not wait until its peer has taken it.
  Ints from(4, 9), to(4);
  world.gpu->hold(world.stream(1));
  must(world[0].broadcast(from.data(), from.data(), 4, DataType::kInt32, 0,
                          world.on_stream(0, Algorithm::kRing)));
  must(world[1].broadcast(nullptr, to.data(), 4, DataType::kInt32, 0,
                          world.on_stream(1, Algorithm::kRing)));
  must(world.gpu->synchronize(world.stream(0)));
  world.leave(0);
  world.gpu->let_go(world.stream(1));
  world.synchronize();
  CHECK(to == from);
  must(world[1].status());
}

TEST_CASE("A rank that leaves before its peers have finished is named") {
  Rig world(2);
  Ints data(300);
  must(sum(world, 0, data));
  world.leave(1);
  check_failed(world[0].status(), Code::kPeerDied,
               {"rank 1 left the communicator after operation 0"});
  world.synchronize();
}

TEST_CASE(
    "Whichever call of CUDA fails, somebody is told, nobody hangs, and nothing is left behind") {
  const bool apart = GENERATE(false, true);  // GPUs that only meet in host memory
  fail_each_call(50, [&](Failing& failing) {
    const OnGpu on(gpus());
    if (apart) on.gpu->peers.clear();
    failing.begin(*on.gpu);
    const auto hear = [&](const Status& status) {
      failing.hear(status);
      if (status.message().find("told to fail") != std::string::npos) says(status, " on GPU ");
    };
    {
      World world(on.gpu, 2);
      for (int rank = 0; rank < 2; ++rank) failing.hear(world.created(rank));
      if (world.all_created()) {
        Ints data[2] = {Ints(300, 1), Ints(300, 2)};
        for (int i = 0; i < 2; ++i) {
          for (int rank = 0; rank < 2; ++rank) hear(sum(world, rank, data[rank]));
        }
        for (int rank = 0; rank < 2; ++rank) hear(world[rank].status());
        world.synchronize();
        for (int rank = 0; rank < 2; ++rank) {
          hear(world[rank].status());
          failing.right = failing.right && data[rank] == Ints(300, 6);
        }
      }
    }
    failing.calls = on.gpu->calls;
  });
}

#if !defined(__SANITIZE_THREAD__)
// Two processes, whose segments lie in host memory: the fake GPU has no other that they share.
TEST_CASE("A rank that dies while others replay a graph is found, and the replay ends") {
  const TempDirectory directory;
  testing::ForkGang gang(2, [&](int rank, testing::Link& link) {
    const auto gpu = gpus();
    gpu->peers.clear();
    Alone self(gpu, directory, rank, 2);
    Ints data(300);
    Captured graph(*gpu, self.stream, [&] {
      testing::expect_ok(sum(*self.ranks, data, self.options()), "capturing");
    });
    testing::expect_ok(self.ranks->status(), "while all ranks live");
    if (rank == 0) graph.replay();
    link.announce("ready");
    if (rank == 1) link.await("nothing");
    // Before anybody calls status(): the kernel has no limit here.
    testing::await("the replay ends", [&] { return gpu->idle(self.stream); });
    expect_failed(self.ranks->status(), Code::kPeerDied,
                  "ended while graphs hold operations of rank 0; found by rank 0");
  });
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "ready");
  gang.kill(1, SIGKILL);
  check_survivors(gang);
}
#endif

}  // namespace
}  // namespace rondo::device::test
