// Communicators on GPUs of several hosts, which are pretended, with UCX over loopback between them:
// that they give what the host's give, in the order of streams, without a call that waits.
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/device/calls.hpp"
#include "tests/comm/device/posts.hpp"
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
        Setup setup = {.gpu = gpus()};
        setup.config.algorithm = algorithm;  // of those that have it
        HostsRig world(hosts, setup);
        std::vector<Call> calls = every_collective(world.size());
        std::erase_if(calls, [&](const Call& call) {  // which there is not
          return algorithm != Algorithm::kAuto && call.collective == Collective::kAllToAll &&
                 call.in_place;
        });
        compare(world, calls);
        CHECK(world[0].stats().operations == calls.size());
        CHECK(world[0].stats().bytes_sent > 0);
        CHECK(world.gpu->launches > 0);
      }
    }
  }
}

// Device memory is the host's here, so UCX can use it. What is tested is what is different: headers
// are messages of their own, and kernels hear of payloads after a flush.
TEST_CASE("Over several hosts, slots on the GPU carry every collective and message") {
  for (const bool flushes : {false, true}) {
    const Setup setup = {.gpu = gpus()};
    setup.gpu->gpu_direct = true;
    setup.gpu->writes = flushes ? transport::cuda_ipc::RemoteWrites::kFlushed
                                : transport::cuda_ipc::RemoteWrites::kOrdered;
    HostsRig world({0, 0, 1}, setup);
    compare(world, every_collective(3));
    exchange(world, {0, 20, 20'000});
    CHECK((world.gpu->flushes > 0) == flushes);
  }
}

TEST_CASE("Over several hosts, GPUs without access to each other share slots inside hosts") {
  const Setup setup = {.gpu = gpus()};
  setup.gpu->peers.clear();
  HostsRig world({0, 0, 1, 1}, setup);
  compare(world, every_collective(4));
}

TEST_CASE("Over several hosts, every type and operator on GPUs gives what it gives on the host") {
  HostsRig world({0, 1, 0});
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
      HostsRig world(hosts);
      compare_varying(world);
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
  const auto add_all = [](Communicator& c, OfAll<std::vector<float>>& data,
                          const CallOptions& options) {
    for (auto& of_ranks : data) {
      std::vector<float>& own = of_ranks[c.rank()];
      testing::expect_ok(c.all_reduce(own.data(), own.data(), own.size(), DataType::kFloat32,
                                      ReduceOp::kSum, options),
                         "all_reduce");
    }
  };
  for (const std::vector<int>& hosts : kHosts) {
    DYNAMIC_SECTION(text_of(hosts)) {
      HostsRig world(hosts, {.gpu = gpus(), .config = reproducible});
      OfAll<std::vector<float>> wanted;
      for (const size_t count : {1, 1000, 20'003}) {
        auto& of_ranks = wanted.emplace_back();
        for (int rank = 0; rank < world.size(); ++rank) of_ranks.push_back(values_of(rank, count));
      }
      auto found = wanted;
      run_on_host(
          world.size(), [&](Communicator& c) { add_all(c, wanted, {}); }, reproducible);
      for (int rank = 0; rank < world.size(); ++rank) {
        add_all(world[rank], found, world.on_stream(rank));
      }
      finish(world);
      CHECK(found == wanted);
    }
  }
}

TEST_CASE("Over several hosts, a group on GPUs has messages both ways, and then collectives") {
  HostsRig world({0, 1, 1});
  std::vector<Ints> sums = {Ints(500, 0), Ints(500, 1), Ints(500, 2)};
  exchange(world, {0, 4, 280, 20'000}, [&](int rank) {
    // The second reads what the first has written.
    for (int i = 0; i < 2; ++i) must(sum(world, rank, sums[rank]));
  });
  for (const Ints& each : sums) CHECK(each == Ints(500, 9));
}

TEST_CASE("Over several hosts, a call is part of its stream's order, and calls keep their own") {
  HostsRig world({0, 1});
  FakeGpu& gpu = *world.gpu;
  Ints source(300, 3), data[2] = {Ints(300, 1), Ints(300, 1)}, once[2] = {Ints(300), Ints(300)},
                       twice[2] = {Ints(300), Ints(300)}, copied(300);
  const auto bytes = [](Ints& of) { return reinterpret_cast<std::byte*>(of.data()); };
  const auto add = [&](int rank, Ints& in, Ints& out, const CallOptions& options) {
    must(sum(world[rank], in.data(), out.data(), 300, options));
  };
  const Stream second = world.add_stream();
  gpu.hold(world.stream(0));
  // What is before the call on its stream is done before, and what is after it after.
  must(gpu.copy(bytes(data[0]), bytes(source), 1200, world.stream(0)));
  add(0, data[0], once[0], world.on_stream(0));  // 3 + 1
  must(gpu.copy(bytes(copied), bytes(once[0]), 1200, world.stream(0)));
  // A call on another stream comes after this one, although its stream is free.
  add(0, once[0], twice[0], {.stream = second});  // 4 + 4
  add(1, data[1], once[1], world.on_stream(1));
  add(1, once[1], twice[1], world.on_stream(1));
  CHECK_FALSE(gpu.idle(second));
  CHECK_FALSE(gpu.idle(world.stream(1)));
  CHECK(data[0] == Ints(300, 1));
  gpu.let_go(world.stream(0));
  finish(world);
  CHECK(copied == Ints(300, 4));
  for (const Ints& each : once) CHECK(each == copied);
  for (const Ints& each : twice) CHECK(each == Ints(300, 8));
}

TEST_CASE("Over several hosts, graphs are captured and replayed") {
  constexpr size_t kCount = 3000;  // many slots
  HostsRig world({0, 0, 1});
  std::vector<Ints> data(3, Ints(kCount, 1)), received(3, Ints(kCount));
  auto graphs = capture_all(world, [&](int rank) {
    Communicator& c = world[rank];
    const CallOptions options = world.on_stream(rank);
    must(sum(world, rank, data[rank]));
    must(c.group_start());
    must(c.send(data[rank].data(), kCount, DataType::kInt32, (rank + 1) % 3, options));
    must(c.recv(received[rank].data(), kCount, DataType::kInt32, (rank + 2) % 3, options));
    must(c.group_end());
  });
  for (int turn = 0; turn < 4; ++turn) {
    // Now and then the proxies sleep before.
    if (turn == 2) std::this_thread::sleep_for(std::chrono::milliseconds(150));
    replay_all(graphs);
  }
  finish(world);
  CHECK(data == std::vector<Ints>(3, Ints(kCount, 81)));
  CHECK(received == data);
}

TEST_CASE(
    "Over several hosts, a rank may be any number of calls ahead of its stream, with a wait") {
  HostsRig world({0, 1});
  std::atomic<int> refused{0};
  on_threads(2, [&](int rank) {
    for (int i = 0; i < 700; ++i) refused += !world[rank].barrier(world.on_stream(rank)).ok();
  });
  finish(world);
  CHECK(refused == 0);
  CHECK(world[0].stats().operations == 700);
}

TEST_CASE(
    "Over several hosts, what there is not on GPUs is refused by name, and the rest works on") {
  HostsRig world({0, 1, 0});
  std::vector<Ints> data(3, Ints(4, 1));
  int32_t* const own = data[0].data();
  Communicator& c = world[0];
  says(c.all_reduce_async(own, own, 4, DataType::kInt32).status(), "has no asynchronous calls");
  says(c.recv(own, 4, DataType::kInt32, 1, 5, nullptr, world.on_stream(0)), "have no tags");
  says(c.barrier(), "Give every rank a stream");  // rank 2 has the same GPU
  says(c.shrink().status(), "on a device");
  says(sum(c, data[0], world.on_stream(0, Algorithm::kTwoShotDirect)),
       "there is no all_reduce by two-shot-direct here");
  says(c.all_gather(own, own, 1, DataType::kInt32, world.on_stream(0, Algorithm::kCopyEngine)),
       "there is no all_gather by copy-engine here");
  says(c.register_device_memory(own, 16), "the ranks are on several hosts");
  for (int rank = 0; rank < 3; ++rank) must(sum(world, rank, data[rank]));
  finish(world);
  for (const Ints& each : data) CHECK(each == Ints(4, 3));
}

TEST_CASE("A communicator on GPUs of several hosts is split, also into those of one host") {
  HostsRig world({0, 0, 1, 1});
  std::vector<Ints> data(4, Ints(300, 1));
  std::atomic<int> ended{0};
  on_threads(4, [&](int rank) {
    if (!sum(world, rank, data[rank]).ok()) return;  // 4; what splits waits for it
    // Its thread's first communicator, so it lies as the hook says for its own rank.
    auto part = world[rank].split(rank % 2, rank);
    if (!part.ok() || !*part) return;
    ended += sum(**part, data[rank], world.on_stream(rank)).ok();  // 8
    world.gpu->drain(world.stream(rank));
  });
  CHECK(ended == 4);
  for (const Ints& each : data) CHECK(each == Ints(300, 8));
  CHECK(world.gpu->launches > 0);
}

}  // namespace
}  // namespace rondo::device::test
