// Communicators on GPUs of several hosts, which are pretended, with UCX over loopback between them:
// that they give what the host's give, in the order of streams, without a call that waits.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "tests/comm/device/hosts_world.hpp"
#include "tests/comm/device/varying_calls.hpp"

namespace rondo::device::test {
namespace {

// Of each rank.
const std::vector<std::vector<int>> kHosts{{0, 1}, {0, 0, 1, 1}, {0, 1, 1, 2, 2, 2}};

std::string text_of(const std::vector<int>& hosts) {
  std::string text = "ranks on hosts";
  for (const int host : hosts) text += " " + std::to_string(host);
  return text;
}

TEST_CASE("Over several hosts, every collective on GPUs gives what it gives on the host") {
  for (const std::vector<int>& hosts : kHosts) {
    for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kHierarchical}) {
      DYNAMIC_SECTION(text_of(hosts) << ", by " << name(algorithm)) {
        const Pretended pretended(hosts);
        const auto gpu = gpus();
        {
          const Installed installed(gpu);
          const auto size = static_cast<int>(hosts.size());
          Config config = small_config();
          config.algorithm = algorithm;  // of those that have it
          World world(gpu, size, config);
          REQUIRE(world.all_created());
          std::vector<Call> calls = every_collective(size);
          std::erase_if(calls, [&](const Call& call) {  // which there is not
            return algorithm != Algorithm::kAuto && call.collective == Collective::kAllToAll &&
                   call.in_place;
          });
          compare(world, calls);
          CHECK(world[0].stats().operations == calls.size());
          CHECK(world[0].stats().bytes_sent > 0);
        }
        CHECK(gpu->launches > 0);
        CHECK(gpu->alive() == 0);
      }
    }
  }
}

// Device memory is the host's here, so UCX can use it. What is tested is what is different: headers
// are messages of their own, and kernels hear of payloads after a flush.
TEST_CASE("Over several hosts, slots on the GPU carry every collective and message") {
  const std::vector<int> hosts = {0, 0, 1};
  for (const bool flushes : {false, true}) {
    const Pretended pretended(hosts);
    const auto gpu = gpus();
    gpu->gpu_direct = true;
    gpu->writes = flushes ? transport::cuda_ipc::RemoteWrites::kFlushed
                          : transport::cuda_ipc::RemoteWrites::kOrdered;
    {
      const Installed installed(gpu);
      World world(gpu, 3);
      REQUIRE(world.all_created());
      compare(world, every_collective(3));
      const std::vector<size_t> counts = {0, 5, 5000};
      std::vector<std::vector<int32_t>> sent, received, wanted;  // [rank * counts + message]
      for (int rank = 0; rank < 3; ++rank) {
        for (const size_t count : counts) {
          sent.push_back(std::vector<int32_t>(count, rank));
          received.push_back(std::vector<int32_t>(count, -1));
          wanted.push_back(std::vector<int32_t>(count, (rank + 2) % 3));
        }
      }
      for (size_t i = 0; i < sent.size(); ++i) {
        const int rank = static_cast<int>(i / counts.size());
        Communicator& c = world[rank];
        const CallOptions options = world.on_stream(rank);
        REQUIRE(c.group_start().ok());
        REQUIRE(
            c.send(sent[i].data(), sent[i].size(), DataType::kInt32, (rank + 1) % 3, options).ok());
        REQUIRE(
            c.recv(received[i].data(), sent[i].size(), DataType::kInt32, (rank + 2) % 3, options)
                .ok());
        REQUIRE(c.group_end().ok());
      }
      world.synchronize();
      check_all_ok(world);
      CHECK(received == wanted);
    }
    CHECK((gpu->flushes > 0) == flushes);
    CHECK(gpu->alive() == 0);
  }
}

TEST_CASE("Over several hosts, GPUs without access to each other share slots inside hosts") {
  const std::vector<int> hosts = {0, 0, 1, 1};
  const Pretended pretended(hosts);
  const auto gpu = gpus();
  gpu->peers.clear();
  {
    const Installed installed(gpu);
    World world(gpu, 4);
    REQUIRE(world.all_created());
    compare(world, every_collective(4));
  }
  CHECK(gpu->alive() == 0);
}

TEST_CASE("Over several hosts, every type and operator on GPUs gives what it gives on the host") {
  const Pretended pretended({0, 1, 0});
  const auto gpu = gpus();
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
  for (const std::vector<int>& hosts : kHosts) {
    DYNAMIC_SECTION(text_of(hosts)) {
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
      const auto gpu = gpus();
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

TEST_CASE("Over several hosts, reproducible sums on GPUs have the bits of the host's") {
  Config reproducible = small_config();
  reproducible.reproducible = true;

  for (const std::vector<int>& hosts : kHosts) {
    DYNAMIC_SECTION(text_of(hosts)) {
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
          size, [&](Communicator& c) { issue_all(c, wanted, {}); }, reproducible);
      const auto gpu = gpus();
      const Installed installed(gpu);
      World world(gpu, size, reproducible);
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
  const Pretended pretended({0, 1, 1});
  const auto gpu = gpus();
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
      REQUIRE(c.send(sent[r][i].data(), sent[r][i].size(), DataType::kInt32, peer, options).ok());
      REQUIRE(
          c.recv(received[r][i].data(), sent[r][i].size(), DataType::kInt32, peer, options).ok());
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

TEST_CASE("Over several hosts, a call is part of its stream's order, and calls keep their own") {
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<int32_t> source(300, 3), data[2], once[2], twice[2], copied(300);
  const auto bytes = [](std::vector<int32_t>& of) {
    return reinterpret_cast<std::byte*>(of.data());
  };
  for (auto& each : data) each.assign(300, 1);
  for (auto* results : {once, twice}) {
    for (int rank = 0; rank < 2; ++rank) results[rank].assign(300, 0);
  }
  const auto add = [&](int rank, std::vector<int32_t>& in, std::vector<int32_t>& out,
                       const CallOptions& options) {
    REQUIRE(world[rank]
                .all_reduce(in.data(), out.data(), 300, DataType::kInt32, ReduceOp::kSum, options)
                .ok());
  };
  const Stream second = *gpu->create_stream();
  gpu->hold(world.stream(0));
  // What is before the call on its stream is done before, and what is after it after.
  REQUIRE(gpu->copy(bytes(data[0]), bytes(source), 1200, world.stream(0)).ok());
  add(0, data[0], once[0], world.on_stream(0));  // 3 + 1
  REQUIRE(gpu->copy(bytes(copied), bytes(once[0]), 1200, world.stream(0)).ok());
  // A call on another stream comes after this one, although its stream is free.
  CallOptions options;
  options.stream = second;
  add(0, once[0], twice[0], options);  // 4 + 4
  add(1, data[1], once[1], world.on_stream(1));
  add(1, once[1], twice[1], world.on_stream(1));
  CHECK_FALSE(gpu->idle(second));
  CHECK_FALSE(gpu->idle(world.stream(1)));
  CHECK(data[0] == std::vector<int32_t>(300, 1));
  gpu->let_go(world.stream(0));
  world.synchronize();
  gpu->drain(second);
  check_all_ok(world);
  CHECK(copied == std::vector<int32_t>(300, 4));
  for (const auto& each : once) CHECK(each == copied);
  for (const auto& each : twice) CHECK(each == std::vector<int32_t>(300, 8));
  REQUIRE(gpu->destroy_stream(second).ok());
}

TEST_CASE("Over several hosts, graphs are captured and replayed") {
  constexpr size_t kCount = 3000;  // many slots
  const std::vector<int> hosts = {0, 0, 1};
  const Pretended pretended(hosts);
  const auto gpu = gpus();
  {
    const Installed installed(gpu);
    World world(gpu, 3);
    REQUIRE(world.all_created());
    using Ints = std::vector<int32_t>;
    std::vector<Ints> data(3, Ints(kCount, 1)), received(3, Ints(kCount));
    std::vector<FakeGpu::Graph> graphs;
    for (int rank = 0; rank < 3; ++rank) {
      const auto r = static_cast<size_t>(rank);
      const CallOptions options = world.on_stream(rank);
      REQUIRE(gpu->begin_capture(world.stream(rank)).ok());
      REQUIRE(sum(world, rank, data[r]).ok());
      REQUIRE(world[rank].group_start().ok());
      REQUIRE(
          world[rank].send(data[r].data(), kCount, DataType::kInt32, (rank + 1) % 3, options).ok());
      REQUIRE(world[rank]
                  .recv(received[r].data(), kCount, DataType::kInt32, (rank + 2) % 3, options)
                  .ok());
      REQUIRE(world[rank].group_end().ok());
      graphs.push_back(gpu->end_capture(world.stream(rank)).value());
    }
    for (int turn = 0; turn < 4; ++turn) {
      // Now and then the proxies sleep before.
      if (turn == 2) std::this_thread::sleep_for(std::chrono::milliseconds(150));
      for (int rank = 0; rank < 3; ++rank) {
        gpu->replay(graphs[static_cast<size_t>(rank)], world.stream(rank));
      }
    }
    world.synchronize();
    check_all_ok(world);
    for (size_t rank = 0; rank < 3; ++rank) {
      CHECK(data[rank] == Ints(kCount, 81));
      CHECK(received[rank] == Ints(kCount, 81));
    }
    for (const FakeGpu::Graph graph : graphs) REQUIRE(gpu->destroy_graph(graph).ok());
  }
  CHECK(gpu->alive() == 0);
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
  CallOptions copies = world.on_stream(0);
  copies.algorithm = Algorithm::kCopyEngine;
  says(world[0].all_gather(data.data(), data.data(), 1, DataType::kInt32, copies),
       "there is no all_gather by copy-engine here");
  says(c.register_memory(data.data(), 16), "the ranks are on several hosts");
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
      // Its thread's first communicator, so it lies as the hook says for its own rank.
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

}  // namespace
}  // namespace rondo::device::test
