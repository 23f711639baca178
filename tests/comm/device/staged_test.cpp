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

#include "tests/comm/device/staged_world.hpp"
#include "tests/comm/device/varying_calls.hpp"

namespace rondo::device::test {
namespace {

/// Where ranks are, and what their communicators stage through: room for every call of a test; for
/// pieces of calls; or for not even those, and then whole calls take many turns.
struct Setting {
  std::vector<int> hosts;
  size_t staging_bytes;
  bool cuts = false;  // some calls
};
const std::vector<Setting> kSettings{{{0, 1}, kMuch},
                                     {{0, 1}, kLittle},
                                     {{0, 0, 1, 1}, 1600, true},
                                     {{0, 1, 1, 2, 2, 2}, 3000, true}};

std::string text_of(const Setting& setting) {
  std::string text = "ranks on hosts";
  for (const int host : setting.hosts) text += " " + std::to_string(host);
  return text + ", staged through " + std::to_string(setting.staging_bytes) + " bytes";
}

TEST_CASE("Over several hosts, every collective on GPUs gives what it gives on the host") {
  for (const Setting& setting : kSettings) {
    DYNAMIC_SECTION(text_of(setting)) {
      const auto& [hosts, staging_bytes, cuts] = setting;
      const Pretended pretended(hosts);
      const auto gpu = gpus(staging_bytes);
      std::atomic<int> copies{0};
      if (cuts) {  // some copies are late, of either direction
        gpu->before_copy = [&copies](const std::byte*, const std::byte*) {
          if (++copies % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        };
      }
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

/// Whether it does within the limit.
bool comes(const std::function<bool()>& it,
           std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!it()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

TEST_CASE("Over several hosts, a call's next piece is copied down while the last goes up") {
  constexpr size_t kCount = 800;
  const Pretended pretended({0, 1});
  const auto gpu = gpus(3000);
  std::vector<int32_t> in[2] = {std::vector<int32_t>(kCount, 1), std::vector<int32_t>(kCount, 2)};
  std::vector<int32_t> out[2] = {std::vector<int32_t>(2 * kCount),
                                 std::vector<int32_t>(2 * kCount)};
  const auto lies_in = [](const std::byte* at, const std::vector<int32_t>& buffer) {
    const auto bytes = std::as_bytes(std::span(buffer));
    return at >= bytes.data() && at < bytes.data() + bytes.size();
  };
  // Rank 0's: a piece is one copy down, and two up.
  std::atomic<size_t> down{0}, up{0}, late{0}, early{0};
  gpu->before_copy = [&](const std::byte* to, const std::byte* from) {
    if (lies_in(from, in[0])) {
      // Its part of the staging memory is that of three pieces ago.
      early += down >= 3 && up < 2 * (down - 2);
      ++down;
    } else if (lies_in(to, out[0])) {
      const size_t piece = up / 2;
      if (up % 2 == 0 && piece < 4) {
        if (late == 0) late += !comes([&] { return down >= piece + 3; });
        // The one after it may not, and has some time to do so.
        (void)comes([&] { return down > piece + 3; }, std::chrono::milliseconds(50));
      }
      ++up;
    }
  };
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(world[rank]
                .all_gather(in[rank].data(), out[rank].data(), kCount, DataType::kInt32,
                            world.on_stream(rank))
                .ok());
  }
  world.synchronize();
  check_all_ok(world);
  CHECK(down > 7);
  CHECK(late == 0);
  CHECK(early == 0);
  std::vector<int32_t> wanted(2 * kCount, 1);
  std::fill(wanted.begin() + kCount, wanted.end(), 2);
  for (const auto& each : out) CHECK((each == wanted));
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

TEST_CASE("Over several hosts, a group over several streams is part of the order of each of them") {
  constexpr size_t kCount = 300;
  const Pretended pretended({0, 1});
  const auto gpu = gpus();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  using Ints = std::vector<int32_t>;
  const auto bytes = [](Ints& of) { return reinterpret_cast<std::byte*>(of.data()); };
  const auto copy = [&](Ints& to, Ints& from, Stream stream) {
    REQUIRE(gpu->copy(bytes(to), bytes(from), kCount * sizeof(int32_t), stream).ok());
  };
  struct Rank {
    Stream second;
    Ints source = Ints(kCount, 3), letter = Ints(kCount, 5);
    Ints data = Ints(kCount), sum = Ints(kCount), total = Ints(kCount), received = Ints(kCount);
    Ints seen_by_first = Ints(kCount), seen_by_second = Ints(kCount);
  } ranks[2];
  for (int r = 0; r < 2; ++r) {
    Rank& own = ranks[r];
    own.second = *gpu->create_stream();
    gpu->hold(own.second);
    copy(own.data, own.source, own.second);  // before the group, on the stream that is held
    const CallOptions first = world.on_stream(r);
    CallOptions second;
    second.stream = own.second;
    Communicator& c = world[r];
    REQUIRE(c.group_start().ok());
    // Reads what the one on the other stream writes, as calls in this order do.
    REQUIRE(c.all_reduce(own.data.data(), own.sum.data(), kCount, DataType::kInt32, ReduceOp::kSum,
                         first)
                .ok());
    REQUIRE(c.all_reduce(own.sum.data(), own.total.data(), kCount, DataType::kInt32, ReduceOp::kSum,
                         second)
                .ok());
    REQUIRE(c.send(own.letter.data(), kCount, DataType::kInt32, 1 - r, first).ok());
    REQUIRE(c.recv(own.received.data(), kCount, DataType::kInt32, 1 - r, second).ok());
    REQUIRE(c.group_end().ok());
    copy(own.seen_by_first, own.total, world.stream(r));
    copy(own.seen_by_second, own.received, own.second);
  }
  for (int r = 0; r < 2; ++r) CHECK_FALSE(gpu->idle(world.stream(r)));
  for (const Rank& own : ranks) gpu->let_go(own.second);
  world.synchronize();
  for (const Rank& own : ranks) gpu->drain(own.second);
  check_all_ok(world);
  for (const Rank& own : ranks) {
    CHECK(own.seen_by_first == Ints(kCount, 12));  // (3 + 3) twice
    CHECK(own.seen_by_second == Ints(kCount, 5));
    REQUIRE(gpu->destroy_stream(own.second).ok());
  }
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
  REQUIRE(gpu->begin_capture(world.stream(0)).ok());
  says(sum(world, 0, data), "the stream is being captured");
  CHECK(gpu->size_of_graph(gpu->end_capture(world.stream(0)).value()) == 0);
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
