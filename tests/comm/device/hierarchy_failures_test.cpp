// What becomes of communicators on several GPUs of each of several hosts, and of streams, when
// something goes wrong inside a host, between hosts, or while a communicator is made.
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/staged_world.hpp"

namespace rondo::device::test {
namespace {

// Bytes for the programs of one sum, but not of two.
constexpr size_t kOneSum = 2560;

/// Until all know of an error, which is one of these.
void await_error(World& world, Code code, const std::string& text) {
  for (int rank = 0; rank < world.size(); ++rank) {
    testing::await("the error is known", [&] { return !world[rank].status().ok(); });
    CHECK(world[rank].status().code() == code);
    says(world[rank].status(), text);
  }
}

TEST_CASE("Over hosts with several GPUs, an abort lets every stream go on") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  {
    const Installed installed(gpu);
    World world(gpu, 4, hierarchical());
    REQUIRE(world.all_created());
    std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
    // Rank 0's kernel waits for rank 1's, and rank 2's for a peer on another host.
    for (const int rank : {0, 2, 3}) {
      for (int i = 0; i < 3; ++i) REQUIRE(sum(world, rank, data[static_cast<size_t>(rank)]).ok());
    }
    CHECK_FALSE(gpu->idle(world.stream(0)));
    world[1].abort("enough");
    world.synchronize();
    await_error(world, Code::kAborted, "rank 1 aborted: enough");
    for (int rank = 0; rank < 4; ++rank) {
      CHECK(sum(world, rank, data[static_cast<size_t>(rank)]).code() == Code::kAborted);
    }
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Over hosts with several GPUs, calls that differ are named, both") {
  struct OtherCall {
    size_t count;
    bool is_staged;
  };
  for (const auto& [count, is_staged] : {OtherCall{50, false}, OtherCall{100, true}}) {
    DYNAMIC_SECTION((is_staged ? "another collective" : "another count")) {
      const Pretended pretended({0, 0, 1, 1});
      const auto gpu = gpus();
      const Installed installed(gpu);
      World world(gpu, 4, hierarchical());
      REQUIRE(world.all_created());
      std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(100));
      data[3].resize(count);
      for (int rank = 0; rank < 4; ++rank) {
        std::vector<int32_t>& own = data[static_cast<size_t>(rank)];
        if (rank == 3 && is_staged) {
          REQUIRE(world[rank]
                      .reduce(own.data(), own.data(), own.size(), DataType::kInt32, 0,
                              ReduceOp::kSum, world.on_stream(rank))
                      .ok());
        } else {
          REQUIRE(sum(world, rank, own).ok());
        }
      }
      world.synchronize();
      await_error(world, Code::kMismatch, "rank 3");
      await_error(world, Code::kMismatch, is_staged ? "reduce(" : "count 50");
    }
  }
}

TEST_CASE("Over hosts with several GPUs, a rank that never comes is an error on all") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  gpu->ns_per_look = 1'000'000;
  const Installed installed(gpu);
  Config config = hierarchical();
  config.timeout = std::chrono::milliseconds(500);
  World world(gpu, 4, config);
  REQUIRE(world.all_created());
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
  for (int rank = 0; rank < 3; ++rank)
    REQUIRE(sum(world, rank, data[static_cast<size_t>(rank)]).ok());
  world.synchronize();
  for (int rank = 0; rank < 4; ++rank) {
    testing::await("the error is known", [&] { return !world[rank].status().ok(); });
    CHECK(world[rank].status().code() == Code::kTimeout);
    says(world[rank].status(), "by hierarchical, among ranks ");
  }
}

/// A network over which a rank's data go slowly: one copy of its GPU, until speed_up().
class SlowNetwork {
 public:
  /// `data`, by rank, is what goes between hosts; `slow`, of that rank. Both outlive the world.
  SlowNetwork(FakeGpu& gpu, const std::vector<std::vector<int32_t>>& data,
              const std::vector<int32_t>& slow)
      : gpu_(gpu) {
    gpu.before_copy = [&data, &slow, s = state_](const std::byte* /*to*/, const std::byte* from) {
      for (unsigned rank = 0; rank < data.size(); ++rank) {
        if (is_in(data[rank], from)) s->begun |= 1u << rank;
      }
      if (!is_in(slow, from)) return;
      s->has_slow_begun = true;
      s->is_slow.wait(true);
    };
  }
  ~SlowNetwork() { speed_up(); }
  SlowNetwork(const SlowNetwork&) = delete;
  SlowNetwork& operator=(const SlowNetwork&) = delete;
  void speed_up() {
    gpu_.ns_per_look = 0;
    state_->is_slow = false;
    state_->is_slow.notify_all();
  }
  /// Until these ranks' data, by bits, and the slow ones go between hosts.
  void await(unsigned ranks) const {
    testing::await("data go between hosts",
                   [&] { return (state_->begun & ranks) == ranks && state_->has_slow_begun; });
  }
  /// Kernels that wait look at the clock for days.
  void pass_days(World& world) const {
    gpu_.ns_per_look = 3'600'000'000'000;
    const uint64_t before = gpu_.looks;
    testing::await("kernels look at the clock", [&] {
      bool has_failed = false;
      for (int rank = 0; rank < world.size(); ++rank) {
        has_failed = has_failed || !world[rank].status().ok();
      }
      return gpu_.looks > before + 1000 || has_failed;
    });
  }

 private:
  static bool is_in(const std::vector<int32_t>& data, const std::byte* at) {
    const auto bytes = std::as_bytes(std::span(data));
    return !std::less<>()(at, bytes.data()) && std::less<>()(at, bytes.data() + bytes.size());
  }
  struct State {
    std::atomic<unsigned> begun{0};
    std::atomic<bool> has_slow_begun{false}, is_slow{true};
  };
  FakeGpu& gpu_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

TEST_CASE("Over hosts with several GPUs, no kernel loses its patience with a slow network") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
  std::vector<std::vector<int32_t>> letters = {std::vector<int32_t>(50, 7),
                                               std::vector<int32_t>(50)};
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  const auto sum_of = [&](int rank) { return sum(world, rank, data[static_cast<size_t>(rank)]); };
  SECTION("in a stage of an operation that goes over links") {
    // Rank 3's share does not get to the wire: its stage takes long, and so does rank 1's.
    SlowNetwork network(*gpu, data, data[3]);
    for (int rank = 0; rank < 4; ++rank) REQUIRE(sum_of(rank).ok());
    network.await(15);
    const auto says_whom = [&] {
      return world[1].flight_record().find("waits for rank 3") != std::string::npos;
    };
    testing::await("rank 1 says whom it waits for", says_whom);
    // Kernels of ranks 0 and 2 are through between hosts.
    network.pass_days(world);
    network.speed_up();
    world.synchronize();
  }
  SECTION("in a message") {
    SlowNetwork network(*gpu, data, letters[0]);
    REQUIRE(world[0].send(letters[0].data(), 50, DataType::kInt32, 2, world.on_stream(0)).ok());
    for (const int rank : {0, 1}) REQUIRE(sum_of(rank).ok());
    REQUIRE(world[2].recv(letters[1].data(), 50, DataType::kInt32, 0, world.on_stream(2)).ok());
    // Rank 0 does not get to its sum, for which rank 1's kernel waits.
    network.await(0);
    network.pass_days(world);
    network.speed_up();
    for (const int rank : {2, 3}) REQUIRE(sum_of(rank).ok());
    world.synchronize();
    CHECK(letters[1] == letters[0]);
  }
  check_all_ok(world);
  CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(300, 4)));
  CHECK(gpu->patient_launches == gpu->launches);
}

TEST_CASE("Over hosts with several GPUs, a group that waits for room says why there is none") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = gpus();
  const Installed installed(gpu, kOneSum);
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
  std::vector<int32_t> other(200, 1);
  World world(gpu, 4, hierarchical());
  REQUIRE(world.all_created());
  const auto sum_of = [&](int rank) { return sum(world, rank, data[static_cast<size_t>(rank)]); };
  CallOptions options = world.on_stream(0);
  Status outcome;
  std::atomic<bool> has_begun{false}, has_ended{false};
  // Its programs fit only after those of the sum before.
  const auto sum_other = [&] {
    has_begun = true;
    outcome = sum(world, 0, other, options);
    has_ended = true;
  };
  SECTION("a slow network does not count") {
    SlowNetwork network(*gpu, data, data[3]);
    for (int rank = 0; rank < 4; ++rank) REQUIRE(sum_of(rank).ok());
    network.await(15);
    options.timeout = std::chrono::milliseconds(1);
    std::thread waits(sum_other);
    testing::await("the call begins", [&] { return has_begun.load(); });
    // It waits as long as the network is slow. An abort ends kernels and call, whichever first.
    for (int i = 0; i < 100 && !has_ended; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    CHECK_FALSE(has_ended);
    world[0].abort("enough");
    waits.join();
    INFO(outcome.to_string());
    CHECK((outcome.ok() || outcome.code() == Code::kAborted));
  }
  SECTION("what does not end in time") {
    REQUIRE(sum_of(0).ok());
    options.timeout = std::chrono::milliseconds(1);
    sum_other();
    CHECK(outcome.code() == Code::kTimeout);
    says(outcome, "did not end within 1 ms");
  }
  SECTION("an error of what it waits for") {
    REQUIRE(sum_of(0).ok());
    std::thread waits(sum_other);
    data[1].resize(200);
    const Status differs = sum_of(1);
    waits.join();
    REQUIRE(differs.ok());
    await_error(world, Code::kMismatch, "count 200");
  }
  world.synchronize();
}

TEST_CASE(
    "Over hosts with several GPUs, a host without room for kernels has all operations staged") {
  const Pretended pretended({0, 0, 1, 1});
  const auto gpu = std::make_shared<FakeGpu>(2, 1);
  gpu->staging_bytes = kMuch;
  {
    const Installed installed(gpu);
    Config config = hierarchical();
    config.channels = 32;
    World world(gpu, 4, config);
    for (int rank = 0; rank < 4; ++rank) {
      INFO(world.created(rank).to_string());
      REQUIRE(world.created(rank).ok());
    }
    std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
    for (int rank = 0; rank < 4; ++rank) {
      REQUIRE(sum(world, rank, data[static_cast<size_t>(rank)]).ok());
    }
    world.synchronize();
    check_all_ok(world);
    CHECK(data == std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(300, 4)));
    CHECK(gpu->launches == 0);
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Over hosts with several GPUs, failing calls of CUDA become errors, and none hangs") {
  const Pretended pretended({0, 0, 1, 1});
  bool reached = true;
  // By steps that grow: every call would be thousands of worlds.
  for (int fail_at = -1; reached; fail_at += 11 + fail_at / 3) {
    const auto gpu = gpus();
    gpu->fail_at = fail_at;
    bool told = false, right = true;
    {
      const Installed installed(gpu);
      World world(gpu, 4, hierarchical());
      for (int rank = 0; rank < 4; ++rank) told = told || !world.created(rank).ok();
      if (world.all_created()) {
        std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
        for (int rank = 0; rank < 4; ++rank) {
          told = !sum(world, rank, data[static_cast<size_t>(rank)]).ok() || told;
        }
        // A rank whose call has failed ends the others' only on their next look.
        world.synchronize();
        for (int rank = 0; rank < 4; ++rank) {
          told = told || !world[rank].status().ok();
          right = right && data[static_cast<size_t>(rank)] == std::vector<int32_t>(300, 4);
        }
      }
    }
    INFO("call " << fail_at << " of " << gpu->calls);
    CHECK(gpu->alive() == 0);
    CHECK((told || right));
    reached = fail_at < gpu->calls;
  }
}

#if !defined(__SANITIZE_THREAD__)
// Segments lie in host memory: the stand-in has no other that processes share.
TEST_CASE("Over hosts with several GPUs, a rank that dies is named, and streams go on") {
  const Pretended pretended({0, 0, 1, 1});
  const TempDirectory directory;
  testing::ForkGang gang(4, [&](int rank, testing::Link& link) {
    const auto gpu = gpus();
    gpu->peers.clear();
    const Installed installed(gpu);
    Config config = config_of(directory, rank, 4, hierarchical());
    config.device = rank % 2;
    const Stream stream = *gpu->create_stream();
    {
      auto made = Communicator::create(config);
      testing::expect_ok(made.status(), "create");
      std::vector<int32_t> data(300, 1);
      CallOptions options;
      options.stream = stream;
      if (rank != 3) {
        testing::expect_ok(made->all_reduce(data.data(), data.data(), data.size(), DataType::kInt32,
                                            ReduceOp::kSum, options),
                           "all_reduce");
      }
      link.announce("ready");
      if (rank == 3) link.await("nothing");
      gpu->drain(stream);
      const auto known = [&] { return !made->status().ok(); };
      testing::await("the error is known", known);
      const Status status = made->status();
      testing::expect(status.code() == Code::kPeerDied, status.to_string());
      testing::expect(status.message().find("rank 3") != std::string::npos, status.to_string());
    }
    testing::expect(gpu->launches > 0, "kernels were launched");
    testing::expect_ok(gpu->destroy_stream(stream), "destroying the stream");
  });
  for (int rank = 0; rank < 4; ++rank) gang.await(rank, "ready");
  gang.kill(3, SIGKILL);
  const auto results = gang.join();
  for (int rank = 0; rank < 3; ++rank) {
    INFO(results[static_cast<size_t>(rank)].message);
    CHECK(results[static_cast<size_t>(rank)].ok);
  }
}
#endif

}  // namespace
}  // namespace rondo::device::test
