// What becomes of communicators on GPUs of several hosts, and of streams, when something goes wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/hosts_world.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("Over several hosts, an abort lets every stream go on, and is what all calls return") {
  const Pretended pretended({0, 1, 1});
  const auto gpu = gpus();
  {
    const Installed installed(gpu);
    World world(gpu, 3);
    REQUIRE(world.all_created());
    std::vector<int32_t> data(300), other(300);
    gpu->hold(world.stream(2));
    for (int i = 0; i < 3; ++i) REQUIRE(sum(world, 0, data).ok());  // waits for the others
    REQUIRE(sum(world, 2, other).ok());                             // waits for its stream
    CHECK_FALSE(gpu->idle(world.stream(0)));
    world[1].abort("enough");
    gpu->drain(world.stream(0));
    gpu->let_go(world.stream(2));
    world.synchronize();
    for (int rank = 0; rank < 3; ++rank) {
      testing::await("the abort is known", [&] { return !world[rank].status().ok(); });
      CHECK(world[rank].status().code() == Code::kAborted);
      says(world[rank].status(), "rank 1 aborted: enough");
      CHECK(sum(world, rank, data).code() == Code::kAborted);
    }
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Over several hosts, a rank that never comes is named, and streams go on") {
  const Pretended pretended({0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  Config config = small_config();
  config.timeout = std::chrono::milliseconds(500);
  gpu->ns_per_look = 100'000'000;
  World world(gpu, 3, config);
  REQUIRE(world.all_created());
  std::vector<int32_t> data[3];
  for (auto& each : data) each.assign(300, 1);
  for (int rank = 0; rank < 2; ++rank) REQUIRE(sum(world, rank, data[rank]).ok());
  world.synchronize();
  for (int rank = 0; rank < 3; ++rank) {
    testing::await("the error is known", [&] { return !world[rank].status().ok(); });
    CHECK(world[rank].status().code() == Code::kTimeout);
    says(world[rank].status(), "rank 2");
    CHECK(sum(world, rank, data[rank]).code() == Code::kTimeout);
  }
}

// As under a debugger: the time in which a process stands still is no thread's in CUDA.
TEST_CASE("Over several hosts, ranks go on after their process was stopped", "[again]") {
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  Config config = small_config();
  config.timeout = std::chrono::seconds(2);
  World world(gpu, 2, config);
  REQUIRE(world.all_created());
  std::vector<int32_t> data[2] = {std::vector<int32_t>(300, 1), std::vector<int32_t>(300, 1)};
  gpu->hold(world.stream(0));
  REQUIRE(sum(world, 0, data[0]).ok());  // its thread looks whether the stream has come so far
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)kill(getppid(), SIGSTOP);
    const timespec longer_than_the_timeout{4, 0};
    (void)nanosleep(&longer_than_the_timeout, nullptr);
    (void)kill(getppid(), SIGCONT);
    _exit(0);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  gpu->let_go(world.stream(0));
  REQUIRE(sum(world, 1, data[1]).ok());
  world.synchronize();
  check_all_ok(world);
  for (const auto& each : data) CHECK(each == std::vector<int32_t>(300, 2));
}

TEST_CASE("Over several hosts, calls that differ are named, both") {
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<int32_t> data[2] = {std::vector<int32_t>(100), std::vector<int32_t>(50)};
  for (int rank = 0; rank < 2; ++rank) REQUIRE(sum(world, rank, data[rank]).ok());
  world.synchronize();
  for (int rank = 0; rank < 2; ++rank) {
    testing::await("the error is known", [&] { return !world[rank].status().ok(); });
    CHECK(world[rank].status().code() == Code::kMismatch);
    says(world[rank].status(), "count 100");
    says(world[rank].status(), "count 50");
  }
}

TEST_CASE(
    "Over several hosts, destroying a communicator ends a call that waits, and frees all memory") {
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  {
    const Installed installed(gpu);
    World world(gpu, 2);
    REQUIRE(world.all_created());
    // The longest wait of a destruction is the communicator's timeout; not that of this call.
    std::vector<int32_t> data(300, 1), other(300, 1);
    REQUIRE(sum(world, 0, data).ok());
    std::thread leaves([&] { world.leave(0); });
    REQUIRE(sum(world, 1, other).ok());  // it was waited for
    leaves.join();
    world.synchronize();
    CHECK(data == std::vector<int32_t>(300, 2));
    CHECK(other == data);
    CHECK(world[1].status().ok());
  }
  CHECK(gpu->alive() == 0);
  {
    const Installed installed(gpu);
    Config config = small_config();
    config.timeout = std::chrono::milliseconds(1);
    World world(gpu, 2, config);
    REQUIRE(world.all_created());
    std::vector<int32_t> data(300);
    gpu->hold(world.stream(0));
    REQUIRE(sum(world, 0, data).ok());
    std::thread lets_go([&] {
      testing::await("the error is known", [&] { return !world[1].status().ok(); });
      gpu->let_go(world.stream(0));
    });
    world.leave(0);
    lets_go.join();
    CHECK(gpu->idle(world.stream(0)));
    says(world[1].status(), "rank 0 was destroyed before its operations had ended");
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Over several hosts, a rank that leaves when its stream is through is missed by nobody") {
  for (const int root : {0, 1}) {
    for (const bool late : {false, true}) {
      INFO("root " << root << (late ? ", a late reader" : ""));
      const Pretended pretended({0, 1});
      const auto gpu = gpus();
      {
        const Installed installed(gpu);
        World world(gpu, 2);
        REQUIRE(world.all_created());
        std::vector<int32_t> data[2] = {std::vector<int32_t>(300, root), std::vector<int32_t>(300)};
        data[root].assign(300, 7);
        const int reader = 1 - root;
        if (late) gpu->hold(world.stream(reader));
        for (int rank = 0; rank < 2; ++rank) {
          REQUIRE(world[rank]
                      .broadcast(data[rank].data(), data[rank].data(), 300, DataType::kInt32, root,
                                 world.on_stream(rank))
                      .ok());
        }
        gpu->drain(world.stream(root));
        std::thread leaves([&] { world.leave(root); });
        if (late) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          gpu->let_go(world.stream(reader));
        }
        gpu->drain(world.stream(reader));
        leaves.join();
        CHECK(data[reader] == std::vector<int32_t>(300, 7));
        CHECK(world[reader].status().ok());
      }
      CHECK(gpu->alive() == 0);
    }
  }
}

TEST_CASE(
    "Over several hosts, every failing call of CUDA becomes an error on a rank, and none hangs") {
  const Pretended pretended({0, 1});
  bool reached = true;
  // Polls are calls too, and many: from some point on not every one fails in its turn.
  for (int fail_at = -1; reached; fail_at += fail_at < 60 ? 1 : fail_at / 4) {
    const auto gpu = gpus();
    gpu->fail_at = fail_at;
    bool told = false, right = true;
    {
      const Installed installed(gpu);
      World world(gpu, 2);
      for (int rank = 0; rank < 2; ++rank) told = told || !world.created(rank).ok();
      if (world.all_created()) {
        std::vector<int32_t> data[2] = {std::vector<int32_t>(300, 1), std::vector<int32_t>(300, 2)};
        for (int i = 0; i < 2; ++i) {
          for (int rank = 0; rank < 2; ++rank) {
            told = !sum(world, rank, data[rank]).ok() || told;
          }
        }
        world.synchronize();
        for (int rank = 0; rank < 2; ++rank) {
          told = told || !world[rank].status().ok();
          right = right && data[rank] == std::vector<int32_t>(300, 6);
        }
      }
    }
    INFO("call " << fail_at << " of " << gpu->calls);
    CHECK(gpu->alive() == 0);
    CHECK((told || right));
    if (fail_at < 0) CHECK_FALSE(told);
    reached = fail_at < gpu->calls;
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("Over several hosts, a rank that dies is named with its host, and streams go on") {
  const Pretended pretended({0, 1});
  const TempDirectory directory;
  testing::ForkGang gang(2, [&](int rank, testing::Link& link) {
    const auto gpu = gpus();
    const Installed installed(gpu);
    Config config = config_of(directory, rank, 2, small_config());
    config.device = 0;
    const Stream stream = *gpu->create_stream();
    {
      auto made = Communicator::create(config);
      testing::expect_ok(made.status(), "create");
      std::vector<int32_t> data(300, 1);
      CallOptions options;
      options.stream = stream;
      if (rank == 0) {
        testing::expect_ok(made->all_reduce(data.data(), data.data(), data.size(), DataType::kInt32,
                                            ReduceOp::kSum, options),
                           "all_reduce");
      }
      link.announce("ready");
      if (rank == 1) link.await("nothing");
      gpu->drain(stream);
      const Status status = made->status();
      testing::expect(status.code() == Code::kPeerDied, status.to_string());
      const bool names_host = status.message().find(" on host h1) ended ") != std::string::npos;
      testing::expect(names_host, status.to_string());
    }
    testing::expect_ok(gpu->destroy_stream(stream), "destroying the stream");
    testing::expect(gpu->alive() == 0, "something is left");
  });
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "ready");
  gang.kill(1, SIGKILL);
  const auto results = gang.join();
  INFO(results[0].message);
  CHECK(results[0].ok);
}

TEST_CASE("Over several hosts, a rank that ends when all is done fails those who need it again") {
  const Pretended pretended({0, 1});
  const TempDirectory directory;
  testing::ForkGang gang(2, [&](int rank, testing::Link& link) {
    const auto gpu = gpus();
    const Installed installed(gpu);
    Config config = config_of(directory, rank, 2, small_config());
    config.device = 0;
    const Stream stream = *gpu->create_stream();
    CallOptions options;
    options.stream = stream;
    auto made = Communicator::create(config);
    testing::expect_ok(made.status(), "create");
    std::vector<int32_t> data(300, 1);
    const auto add = [&] {
      return made->all_reduce(data.data(), data.data(), data.size(), DataType::kInt32,
                              ReduceOp::kSum, options);
    };
    testing::expect_ok(add(), "all_reduce");
    gpu->drain(stream);
    link.announce("done");
    link.await("the other has ended");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    testing::expect(data == std::vector<int32_t>(300, 2), "another sum");
    testing::expect_ok(made->status(), "status");
    const Status failed = add();
    testing::expect(failed.code() == Code::kPeerDied, failed.to_string());
    testing::expect(failed.message().find("rank 1") != std::string::npos, failed.to_string());
  });
  for (int rank = 0; rank < 2; ++rank) gang.await(rank, "done");
  gang.kill(1, SIGKILL);
  gang.tell(0, "the other has ended");
  const auto results = gang.join();
  INFO(results[0].message);
  CHECK(results[0].ok);
}
#endif

}  // namespace
}  // namespace rondo::device::test
