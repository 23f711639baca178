// Communicators on GPUs of several hosts, which are pretended, with UCX over loopback between them:
// that they give what the host's give, in the order of streams, without a call that waits; and what
// becomes of streams when something goes wrong.
#include <atomic>
#include <cmath>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/varying_calls.hpp"
#include "tests/comm/device/world.hpp"

namespace rondo::device::test {
namespace {

/// Where ranks are, and what their communicators stage through: room for every call of a test; for
/// pieces of calls; or for not even those, and then whole calls take many turns.
struct Setting {
  std::vector<int> hosts;
  size_t staging_bytes;
  bool cuts = false;  // some calls
};
constexpr size_t kMuch = size_t{1} << 20, kLittle = 256;
const std::vector<Setting> kSettings{{{0, 1}, kMuch},
                                     {{0, 1}, kLittle},
                                     {{0, 0, 1, 1}, 1600, true},
                                     {{0, 1, 1, 2, 2, 2}, 3000, true}};

std::string text_of(const Setting& setting) {
  std::string text = "ranks on hosts";
  for (const int host : setting.hosts) text += " " + std::to_string(host);
  return text + ", staged through " + std::to_string(setting.staging_bytes) + " bytes";
}

/// Two GPUs, whose communicators stage through so much memory.
std::shared_ptr<FakeGpu> gpus(size_t staging_bytes = kMuch) {
  auto gpu = std::make_shared<FakeGpu>(2);
  gpu->staging_bytes = staging_bytes;
  return gpu;
}

Status sum(World& world, int rank, std::vector<int32_t>& data, CallOptions options) {
  return world[rank].all_reduce(data.data(), data.data(), data.size(), DataType::kInt32,
                                ReduceOp::kSum, options);
}
Status sum(World& world, int rank, std::vector<int32_t>& data) {
  return sum(world, rank, data, world.on_stream(rank));
}

void check_all_ok(World& world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    INFO("rank " << rank << ": " << world[rank].status().to_string());
    CHECK(world[rank].status().ok());
  }
}

TEST_CASE("Over several hosts, every collective on GPUs gives what it gives on the host") {
  for (const Setting& setting : kSettings) {
    DYNAMIC_SECTION(text_of(setting)) {
      const auto& [hosts, staging_bytes, cuts] = setting;
      const Pretended pretended(hosts);
      const auto gpu = gpus(staging_bytes);
      {
        const Installed installed(gpu);
        const auto size = static_cast<int>(hosts.size());
        World world(gpu, size);
        REQUIRE(world.all_created());
        compare(world, every_collective(size));
        const size_t calls = every_collective(size).size();
        const auto operations = world[0].stats().operations;
        CHECK((cuts ? operations > calls : operations == calls));
        CHECK(world[0].stats().bytes_sent > 0);
      }
      CHECK(gpu->launches == 0);
      CHECK(gpu->alive() == 0);
    }
  }
}

TEST_CASE("Over several hosts, every type and operator on GPUs gives what it gives on the host") {
  const Pretended pretended({0, 1, 0});
  const auto gpu = gpus(512);
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  std::vector<Call> calls;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      const Call call = {.collective = Collective::kAllReduce,
                         .count = 131,
                         .type = static_cast<DataType>(type),
                         .op = static_cast<ReduceOp>(op)};
      if (supports(call.collective, call.type, call.op)) calls.push_back(call);
    }
  }
  compare(world, calls);
}

TEST_CASE("Over several hosts, _v collectives on GPUs give what they give on the host") {
  for (const Setting& setting : kSettings) {
    DYNAMIC_SECTION(text_of(setting)) {
      const auto& [hosts, staging_bytes, cuts] = setting;
      const Pretended pretended(hosts);
      const auto ranks = hosts.size();
      const auto calls = varying_calls(static_cast<int>(ranks));
      std::vector<std::vector<int32_t>> wanted(ranks * calls.size(), std::vector<int32_t>(kRoom));
      auto found = wanted;
      run_on_host(static_cast<int>(ranks), [&](Communicator& c) {
        const std::vector<int32_t> in = filled(c.rank());
        for (size_t i = 0; i < calls.size(); ++i) {
          int32_t* const out = wanted[i * ranks + static_cast<size_t>(c.rank())].data();
          testing::expect_ok(calls[i](c, in.data(), out, {}), "_v");
        }
      });
      const auto gpu = gpus(staging_bytes);
      const Installed installed(gpu);
      World world(gpu, static_cast<int>(ranks));
      REQUIRE(world.all_created());
      std::vector<std::vector<int32_t>> in;
      for (size_t r = 0; r < ranks; ++r) {
        in.push_back(filled(static_cast<int>(r)));
        for (size_t i = 0; i < calls.size(); ++i) {
          const auto rank = static_cast<int>(r);
          REQUIRE(calls[i](world[rank], in[r].data(), found[i * ranks + r].data(),
                           world.on_stream(rank))
                      .ok());
        }
      }
      world.synchronize();
      check_all_ok(world);
      CHECK(found == wanted);
    }
  }
}

// Values without a pattern, so that another order of folding, or of rounding, would be seen.
std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(
        static_cast<float>(std::sin(static_cast<double>(i * 31 + static_cast<size_t>(rank) * 17)) *
                           std::ldexp(1.0, static_cast<int>(i % 20) - 10)));
  }
  return values;
}

TEST_CASE("Over several hosts, sums on GPUs have the bits of the host's") {
  for (const Setting& setting : kSettings) {
    DYNAMIC_SECTION(text_of(setting)) {
      const auto& [hosts, staging_bytes, cuts] = setting;
      const Pretended pretended(hosts);
      const auto size = static_cast<int>(hosts.size());
      std::vector<std::vector<float>> wanted, found;
      const std::vector<size_t> counts = {1, 1000, 20'003};
      for (const size_t count : counts) {
        for (int rank = 0; rank < size; ++rank) wanted.push_back(values_of(rank, count));
      }
      found = wanted;
      const auto issue_all = [&](Communicator& c, std::vector<std::vector<float>>& data,
                                 const CallOptions& options) {
        for (size_t i = 0; i < counts.size(); ++i) {
          std::vector<float>& own = data[i * hosts.size() + static_cast<size_t>(c.rank())];
          testing::expect_ok(c.all_reduce(own.data(), own.data(), own.size(), DataType::kFloat32,
                                          ReduceOp::kSum, options),
                             "all_reduce");
        }
      };
      run_on_host(
          size, [&](Communicator& c) { issue_all(c, wanted, {}); }, small_config());
      const auto gpu = gpus(staging_bytes);
      const Installed installed(gpu);
      World world(gpu, size);
      REQUIRE(world.all_created());
      for (int rank = 0; rank < size; ++rank) {
        issue_all(world[rank], found, world.on_stream(rank));
      }
      world.synchronize();
      check_all_ok(world);
      CHECK(found == wanted);
    }
  }
}

TEST_CASE("Over several hosts, a group on GPUs has messages both ways, and then collectives") {
  for (const size_t staging_bytes : {kMuch, kLittle}) {
    DYNAMIC_SECTION("staged through " << staging_bytes << " bytes") {
      const Pretended pretended({0, 1, 1});
      const auto gpu = gpus(staging_bytes);
      const Installed installed(gpu);
      World world(gpu, 3);
      REQUIRE(world.all_created());
      const std::vector<size_t> counts = {0, 1, 70, 5000};
      // [rank][peer * counts + message]
      std::vector<std::vector<std::vector<int32_t>>> sent(3), received(3), wanted(3);
      std::vector<std::vector<int32_t>> sums;
      for (int rank = 0; rank < 3; ++rank) {
        sums.push_back(std::vector<int32_t>(500, rank));
        for (int peer = 0; peer < 3; ++peer) {
          for (size_t m = 0; m < counts.size(); ++m) {
            const auto value = [&](int from, int to) {
              return std::vector<int32_t>(counts[m], from * 100 + to * 10 + static_cast<int>(m));
            };
            sent[static_cast<size_t>(rank)].push_back(value(rank, peer));
            wanted[static_cast<size_t>(rank)].push_back(value(peer, rank));
            received[static_cast<size_t>(rank)].push_back(std::vector<int32_t>(counts[m]));
          }
        }
      }
      for (int rank = 0; rank < 3; ++rank) {
        const auto r = static_cast<size_t>(rank);
        Communicator& c = world[rank];
        const CallOptions options = world.on_stream(rank);
        REQUIRE(c.group_start().ok());
        for (size_t i = 0; i < sent[r].size(); ++i) {
          const int peer = static_cast<int>(i / counts.size());
          REQUIRE(
              c.send(sent[r][i].data(), sent[r][i].size(), DataType::kInt32, peer, options).ok());
          REQUIRE(c.recv(received[r][i].data(), sent[r][i].size(), DataType::kInt32, peer, options)
                      .ok());
        }
        // The second reads what the first has written.
        for (int i = 0; i < 2; ++i) REQUIRE(sum(world, rank, sums[r]).ok());
        REQUIRE(c.group_end().ok());
      }
      world.synchronize();
      check_all_ok(world);
      CHECK(received == wanted);
      CHECK(sums == std::vector<std::vector<int32_t>>(3, std::vector<int32_t>(500, 9)));
    }
  }
}

TEST_CASE("Over several hosts, a call is part of its stream's order, and calls keep their own") {
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<int32_t> source(300, 3), data[2], copied(300);
  const auto bytes = [](std::vector<int32_t>& of) {
    return reinterpret_cast<std::byte*>(of.data());
  };
  for (auto& each : data) each.assign(300, 1);
  const Stream second = *gpu->create_stream();
  gpu->hold(world.stream(0));
  // What is before the call on its stream is done before, and what is after it after.
  REQUIRE(gpu->copy(bytes(data[0]), bytes(source), 1200, world.stream(0)).ok());
  REQUIRE(sum(world, 0, data[0]).ok());  // 3 + 1
  REQUIRE(gpu->copy(bytes(copied), bytes(data[0]), 1200, world.stream(0)).ok());
  // A call on another stream comes after this one, although its stream is free.
  CallOptions options;
  options.stream = second;
  REQUIRE(sum(world, 0, data[0], options).ok());  // 4 + 4
  for (int i = 0; i < 2; ++i) REQUIRE(sum(world, 1, data[1]).ok());
  CHECK_FALSE(gpu->idle(second));
  CHECK_FALSE(gpu->idle(world.stream(1)));
  CHECK(data[0] == std::vector<int32_t>(300, 1));
  gpu->let_go(world.stream(0));
  world.synchronize();
  gpu->drain(second);
  check_all_ok(world);
  CHECK(data[0] == std::vector<int32_t>(300, 8));
  CHECK(data[1] == data[0]);
  // The copy runs beside the second call, which may have ended.
  const bool in_order = copied == std::vector<int32_t>(300, 4) || copied == data[0];
  CHECK(in_order);
  REQUIRE(gpu->destroy_stream(second).ok());
}

TEST_CASE(
    "Over several hosts, a rank may be any number of calls ahead of its stream, with a wait") {
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<std::thread> ranks;
  std::atomic<int> refused{0};
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int i = 0; i < 700; ++i) refused += !world[rank].barrier(world.on_stream(rank)).ok();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  world.synchronize();
  CHECK(refused == 0);
  CHECK(world[0].stats().operations == 700);
  check_all_ok(world);
}

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

TEST_CASE("Over several hosts, copies that streams hold up end with an error, and streams go on") {
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  std::vector<int32_t> data[2];  // copies that were held up may read them until the world ends
  {
    const Installed installed(gpu);
    Config config = small_config();
    config.timeout = std::chrono::milliseconds(500);
    World world(gpu, 2, config);
    REQUIRE(world.all_created());
    gpu->copies_queue_after_waits = true;
    for (int rank = 0; rank < 2; ++rank) {
      data[rank].assign(300, 1);
      gpu->hold(world.stream(rank));
      for (int i = 0; i < 3; ++i) REQUIRE(sum(world, rank, data[rank]).ok());
    }
    for (int rank = 0; rank < 2; ++rank) gpu->let_go(world.stream(rank));
    world.synchronize();
    for (int rank = 0; rank < 2; ++rank) {
      testing::await("the error is known", [&] { return !world[rank].status().ok(); });
      CHECK(world[rank].status().code() == Code::kTimeout);
      says(world[rank].status(), "set CUDA_DEVICE_MAX_CONNECTIONS");
    }
  }
  CHECK(gpu->alive() == 0);
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

TEST_CASE(
    "Over several hosts, what there is not on GPUs is refused by name, and the rest works on") {
  const Pretended pretended({0, 1, 0});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  std::vector<int32_t> data(4, 1);
  Communicator& c = world[0];
  says(c.all_reduce_async(data.data(), data.data(), 4, DataType::kInt32).status(),
       "has no asynchronous calls");
  says(c.recv(data.data(), 4, DataType::kInt32, 1, 5, nullptr, world.on_stream(0)), "have no tags");
  says(c.barrier(), "Give every rank a stream");  // rank 2 has the same GPU
  says(c.shrink().status(), "on a device");
  CallOptions direct = world.on_stream(0);
  direct.algorithm = Algorithm::kTwoShotDirect;
  says(sum(world, 0, data, direct), "there is no all_reduce by two-shot-direct here");
  gpu->begin_capture(world.stream(0));
  says(sum(world, 0, data), "the stream is being captured");
  CHECK(gpu->end_capture(world.stream(0)).empty());
  std::vector<int32_t> all[3];
  for (int rank = 0; rank < 3; ++rank) {
    all[rank] = data;
    REQUIRE(sum(world, rank, all[rank]).ok());
  }
  world.synchronize();
  check_all_ok(world);
  for (const auto& each : all) CHECK(each == std::vector<int32_t>(4, 3));
}

TEST_CASE("A communicator on GPUs of several hosts is split, also into those of one host") {
  const std::vector<int> hosts = {0, 0, 1, 1};
  const Pretended pretended(hosts);
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 4);
  REQUIRE(world.all_created());
  std::vector<std::vector<int32_t>> data(4, std::vector<int32_t>(300, 1));
  std::vector<std::thread> ranks;
  std::atomic<int> failed{0};
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      std::vector<int32_t>& own = data[static_cast<size_t>(rank)];
      failed += !sum(world, rank, own).ok();  // 4; what splits waits for it
      // Pretended hosts are by rank, so the parts lie as the hook says for their own ranks.
      auto part = world[rank].split(rank % 2, rank);
      const CallOptions options = world.on_stream(rank);
      if (!part.ok() || !*part) {
        ++failed;
        return;
      }
      failed += !(*part)
                     ->all_reduce(own.data(), own.data(), 300, DataType::kInt32, ReduceOp::kSum,
                                  options)
                     .ok();  // 8
      gpu->drain(world.stream(rank));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(failed == 0);
  for (const auto& each : data) CHECK(each == std::vector<int32_t>(300, 8));
  CHECK(gpu->launches > 0);
}

TEST_CASE(
    "Over several hosts, every failing call of CUDA becomes an error on a rank, and none hangs") {
  const Pretended pretended({0, 1});
  bool reached = true;
  // Polls are calls too, and many: from some point on not every one fails in its turn.
  for (int fail_at = -1; reached; fail_at += fail_at < 60 ? 1 : fail_at / 4) {
    const auto gpu = gpus(fail_at % 2 == 0 ? 1600 : kLittle);  // in pieces, or many turns
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
TEST_CASE("Over several hosts, a rank that dies is named, and streams go on") {
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
      testing::expect(status.message().find("rank 1") != std::string::npos, status.to_string());
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
#endif

}  // namespace
}  // namespace rondo::device::test
