// Messages between GPUs, alone and in groups with collectives: that they arrive, in one launch, in
// whatever order ranks name them, and what is said when they do not fit together.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/device/world.hpp"

namespace rondo::device::test {
namespace {

// Of every pair, in this order: nothing, one byte, what fills slots to the last byte and not quite,
// what several channels share.
const std::vector<size_t> kMessageBytes = {0, 1, 256, 8 * 256, 1999, 150'001, 3};

unsigned char byte_of(int from, int to, size_t message, size_t i) {
  return static_cast<unsigned char>(static_cast<size_t>(from * 31 + to * 7) + message * 13 + i * 3 +
                                    i / 251);
}

// A rank's messages with everybody, itself too; every one at an odd place.
struct Post {
  int rank, size;
  std::vector<unsigned char> out, in;

  size_t at(int peer, size_t message) const {
    size_t before = 0;
    for (size_t m = 0; m < kMessageBytes.size(); ++m) {
      if (m < message) before += kMessageBytes[m] + 1;
    }
    return static_cast<size_t>(peer) * all() + before;
  }
  static size_t all() {
    size_t bytes = 0;
    for (const size_t each : kMessageBytes) bytes += each + 1;
    return bytes;
  }
  Post(int own, int ranks)
      : rank(own),
        size(ranks),
        out(static_cast<size_t>(ranks) * all(), 0xee),
        in(static_cast<size_t>(ranks) * all(), 0xee) {
    for (int peer = 0; peer < size; ++peer) {
      for (size_t m = 0; m < kMessageBytes.size(); ++m) {
        for (size_t i = 0; i < kMessageBytes[m]; ++i)
          out[at(peer, m) + i] = byte_of(rank, peer, m, i);
      }
    }
  }
  bool is_right() const {
    std::vector<unsigned char> wanted(in.size(), 0xee);
    for (int peer = 0; peer < size; ++peer) {
      for (size_t m = 0; m < kMessageBytes.size(); ++m) {
        for (size_t i = 0; i < kMessageBytes[m]; ++i) {
          wanted[at(peer, m) + i] = byte_of(peer, rank, m, i);
        }
      }
    }
    return in == wanted;
  }
};

// All of them as one group. Lanes in an order of the rank's own; within one, in order.
void exchange(Communicator& c, Post& post, const CallOptions& options) {
  std::vector<int> lanes;  // 2 * peer, + 1: to it
  for (int lane = 0; lane < 2 * post.size; ++lane) {
    lanes.insert(lanes.end(), kMessageBytes.size(), lane);
  }
  std::mt19937 random(static_cast<unsigned>(post.rank));
  std::shuffle(lanes.begin(), lanes.end(), random);
  std::vector<size_t> next(2 * static_cast<size_t>(post.size));
  for (const int lane : lanes) {
    const int peer = lane / 2;
    const size_t m = next[static_cast<size_t>(lane)]++;
    const Status status = lane % 2 == 1 ? c.send(post.out.data() + post.at(peer, m),
                                                 kMessageBytes[m], DataType::kUint8, peer, options)
                                        : c.recv(post.in.data() + post.at(peer, m),
                                                 kMessageBytes[m], DataType::kUint8, peer, options);
    INFO(status.to_string());
    REQUIRE(status.ok());
  }
}

TEST_CASE("On a device, a group's messages arrive in one launch, whatever their order") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      const auto gpu = std::make_shared<FakeGpu>(2);
      {
        const Installed installed(gpu);
        World world(gpu, size);
        REQUIRE(world.all_created());
        std::vector<Post> posts;
        for (int rank = 0; rank < size; ++rank) posts.emplace_back(rank, size);
        std::vector<int32_t> sums(static_cast<size_t>(2 * size), 1);
        for (int rank = 0; rank < size; ++rank) {
          REQUIRE(world[rank].group_start().ok());
          exchange(world[rank], posts[static_cast<size_t>(rank)], world.on_stream(rank));
          for (int i = 0; i < 2; ++i) {
            int32_t* const sum = &sums[static_cast<size_t>(2 * rank + i)];
            REQUIRE(world[rank]
                        .all_reduce(sum, sum, 1, DataType::kInt32, ReduceOp::kSum,
                                    world.on_stream(rank))
                        .ok());
          }
          REQUIRE(gpu->idle(world.stream(rank)));  // nothing before the group ends
          REQUIRE(world[rank].group_end().ok());
        }
        world.synchronize();
        for (int rank = 0; rank < size; ++rank) {
          INFO("rank " << rank << ": " << world[rank].status().to_string());
          CHECK(world[rank].status().ok());
          CHECK(posts[static_cast<size_t>(rank)].is_right());
          CHECK(world[rank].stats().bytes_sent >=
                static_cast<uint64_t>(size) * (Post::all() - kMessageBytes.size()));
        }
        CHECK(sums == std::vector<int32_t>(sums.size(), size));
        CHECK(gpu->launches == size);
      }
      CHECK(gpu->alive() == 0);
    }
  }
}

TEST_CASE("On a device, messages and collectives follow each other on a stream, and in graphs") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  int32_t values[2] = {5, 0};
  const auto call = [&](int rank) {
    const CallOptions options = world.on_stream(rank);
    int32_t* const value = &values[rank];
    REQUIRE((rank == 0 ? world[0].send(value, 1, DataType::kInt32, 1, options)
                       : world[1].recv(value, 1, DataType::kInt32, 0, options))
                .ok());
    REQUIRE(
        world[rank].all_reduce(value, value, 1, DataType::kInt32, ReduceOp::kSum, options).ok());
  };
  for (int rank = 0; rank < 2; ++rank) call(rank);
  world.synchronize();
  FakeGpu::Graph graphs[2];
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(gpu->begin_capture(world.stream(rank)).ok());
    call(rank);
    graphs[rank] = gpu->end_capture(world.stream(rank)).value();
  }
  CHECK((values[0] == 10 && values[1] == 10));
  for (int replay = 0; replay < 2; ++replay) {
    for (int rank = 0; rank < 2; ++rank) gpu->replay(graphs[rank], world.stream(rank));
  }
  world.synchronize();
  CHECK((values[0] == 40 && values[1] == 40));
  CHECK((world[0].status().ok() && world[1].status().ok()));
}

TEST_CASE("A group's operations on the same buffers are one after the other") {
  const auto gpu = std::make_shared<FakeGpu>();
  gpu->first_block_is_late = true;
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  constexpr size_t kCount = 4096;
  std::vector<int32_t> values(2 * kCount, 1), others(2, 1);
  for (int rank = 0; rank < 2; ++rank) {
    Communicator& c = world[rank];
    int32_t* const value = values.data() + static_cast<size_t>(rank) * kCount;
    int32_t* const other = &others[static_cast<size_t>(rank)];
    const CallOptions options = world.on_stream(rank);
    const auto sum = [&](int32_t* at, size_t count) {
      return c.all_reduce(at, at, count, DataType::kInt32, ReduceOp::kSum, options);
    };
    REQUIRE(c.group_start().ok());
    if (rank == 0) REQUIRE(c.recv(value + 50, 1000, DataType::kInt32, 1, options).ok());
    if (rank == 1) REQUIRE(c.send(value + 2000, 1000, DataType::kInt32, 0, options).ok());
    REQUIRE(sum(value, kCount).ok());
    REQUIRE(sum(value, 100).ok());
    REQUIRE(sum(other, 1).ok());  // which has nothing to do with them
    REQUIRE(c.broadcast(value, value, kCount, DataType::kInt32, 0, options).ok());
    REQUIRE(c.group_end().ok());
  }
  world.synchronize();
  for (size_t i = 0; i < values.size(); ++i) {
    INFO(i);
    REQUIRE(values[i] == (i % kCount < 100 ? 4 : 2));
  }
  CHECK(others == std::vector<int32_t>{2, 2});
  CHECK((world[0].status().ok() && world[1].status().ok()));
}

TEST_CASE(
    "Operations of a group that touch each other's buffers are launches one after the other") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  // Of four buffers: what the first operation reads and writes, and the second.
  struct Case {
    size_t in, out, then_in, then_out;
    int launches;
    const char* what;
  };
  for (const Case& each :
       {Case{0, 1, 2, 3, 1, "nothing in common"}, Case{0, 1, 0, 3, 1, "both read the same"},
        Case{0, 1, 1, 3, 2, "read after write"}, Case{0, 1, 2, 1, 2, "write after write"},
        Case{0, 1, 2, 0, 2, "write after read"}}) {
    INFO(each.what);
    std::vector<int32_t> data[2];
    for (int rank = 0; rank < 2; ++rank) {
      for (int32_t buffer = 0; buffer < 4; ++buffer) {
        data[rank].insert(data[rank].end(), 100, (buffer + 1) * (rank + 1));
      }
    }
    std::vector<int32_t> wanted = {3, 6, 9, 12};  // their sums over both ranks
    const int before = gpu->launches;
    for (int rank = 0; rank < 2; ++rank) {
      int32_t* const at = data[rank].data();
      REQUIRE(world[rank].group_start().ok());
      for (const auto& [in, out] :
           {std::pair(each.in, each.out), std::pair(each.then_in, each.then_out)}) {
        REQUIRE(world[rank]
                    .all_reduce(at + 100 * in, at + 100 * out, 100, DataType::kInt32,
                                ReduceOp::kSum, world.on_stream(rank))
                    .ok());
      }
      REQUIRE(world[rank].group_end().ok());
    }
    world.synchronize();
    CHECK(gpu->launches == before + 2 * each.launches);
    const int32_t first = wanted[each.in];
    const int32_t second = each.then_in == each.out ? 2 * first : wanted[each.then_in];
    for (const auto& found : data) {
      CHECK(found[100 * each.then_out + 99] == second);
      if (each.then_out != each.out) CHECK(found[100 * each.out] == first);
    }
  }
}

TEST_CASE("A group of one rank does not wait for its own kernels, however many shapes are new") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  // More than the launches that may be in flight; rank 1's come from the same thread, after rank 0's.
  constexpr size_t kShapes = 500, kElements = kShapes * (kShapes + 1) / 2;
  std::vector<int32_t> values[2] = {std::vector<int32_t>(kElements, 1),
                                    std::vector<int32_t>(kElements, 2)};
  for (int rank = 0; rank < 2; ++rank) {
    int32_t* data = values[rank].data();
    REQUIRE(world[rank].group_start().ok());
    for (size_t count = 1; count <= kShapes; data += count++) {
      REQUIRE(world[rank]
                  .broadcast(data, data, count, DataType::kInt32, 0, world.on_stream(rank))
                  .ok());
    }
    REQUIRE(world[rank].group_end().ok());
  }
  world.synchronize();
  CHECK(values[1] == values[0]);
}

TEST_CASE("A group of more operations than a launch takes is several launches") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<int32_t> values(2 * 20, 1);
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(world[rank].group_start().ok());
    for (size_t i = 0; i < 20; ++i) {
      int32_t* const value = &values[static_cast<size_t>(rank) * 20 + i];
      REQUIRE(
          world[rank]
              .all_reduce(value, value, 1, DataType::kInt32, ReduceOp::kSum, world.on_stream(rank))
              .ok());
    }
    REQUIRE(world[rank].group_end().ok());
  }
  world.synchronize();
  CHECK(values == std::vector<int32_t>(values.size(), 2));
  CHECK(gpu->launches == 2 * 3);
}

TEST_CASE("A rank far ahead waits for its own kernels, and goes on when they do") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  constexpr int kCalls = 1200;
  std::vector<int32_t> values(2, 1);
  std::atomic<int> called{0};
  const auto call = [&](int rank) {
    int32_t* const value = &values[static_cast<size_t>(rank)];
    return world[rank].all_reduce(value, value, 1, DataType::kInt32, ReduceOp::kMax,
                                  world.on_stream(rank));
  };
  std::thread ahead([&] {
    for (int i = 0; i < kCalls && call(0).ok(); ++i) ++called;
  });
  constexpr int kFew = 382;  // the copy of the program counts as a launch
  for (int look = 0; look < 10'000 && called < kFew; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // A while, in which it would call them all.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(called == kFew);
  int behind = 0;
  while (behind < kCalls && call(1).ok()) ++behind;
  ahead.join();
  CHECK(called == kCalls);
  CHECK(behind == kCalls);
  world.synchronize();
  CHECK((world[0].status().ok() && world[1].status().ok()));
}

// What both ranks are told in the end.
void fail_alike(World& world, Code code, const std::string& text) {
  for (int rank = 0; rank < world.size(); ++rank) {
    const Status status = world[rank].status();
    INFO(status.to_string());
    CHECK(status.code() == code);
    CHECK(status.message().find(text) != std::string::npos);
  }
}

TEST_CASE("Messages of GPUs that do not fit together are told, with both sizes") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  std::vector<float> data(100'000);
  REQUIRE(world[0].send(data.data(), 50'000, DataType::kFloat32, 1, world.on_stream(0)).ok());
  REQUIRE(world[1].recv(data.data(), 40'000, DataType::kFloat32, 0, world.on_stream(1)).ok());
  world.synchronize();
  fail_alike(world, Code::kMismatch,
             "rank 0 sends 50000 float to rank 1, which expects 40000 float");
}

TEST_CASE("On a device tags, any source and probes are refused, and nothing is lost") {
  const auto gpu = std::make_shared<FakeGpu>();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  int32_t value = 1;
  const CallOptions options = world.on_stream(0);
  for (const Status& status :
       {world[0].send(&value, 1, DataType::kInt32, 1, 0, options),
        world[0].recv(&value, 1, DataType::kInt32, kAnySource, 1, nullptr, options),
        world[0].probe(1, 0, options).status()}) {
    CHECK(status.code() == Code::kUnavailable);
    CHECK(status.message().find("messages on a device have no tags") != std::string::npos);
  }
  CHECK(world[0].status().ok());
}

TEST_CASE("A message whose other end never comes is named, and abort() ends one that waits") {
  for (const bool impatient : {true, false}) {
    const auto gpu = std::make_shared<FakeGpu>();
    if (impatient) gpu->ns_per_look = 1'000'000'000;
    const Installed installed(gpu);
    World world(gpu, 2);
    REQUIRE(world.all_created());
    std::vector<float> data(100'000);
    REQUIRE(world[0].group_start().ok());
    REQUIRE(world[0].send(data.data(), 50'000, DataType::kFloat32, 1, world.on_stream(0)).ok());
    REQUIRE(world[0].send(data.data(), 7, DataType::kFloat32, 1, world.on_stream(0)).ok());
    REQUIRE(world[0].group_end().ok());
    if (!impatient) world[1].abort("that is all");
    world.synchronize();
    if (impatient) {
      fail_alike(world, Code::kTimeout,
                 "send(float, count 50000) to rank 1 has not moved within its timeout on rank 0: "
                 "rank 1 has not called the matching recv");
    } else {
      fail_alike(world, Code::kAborted, "rank 1 aborted: that is all");
    }
    CHECK_FALSE(world[0].send(data.data(), 7, DataType::kFloat32, 1, world.on_stream(0)).ok());
  }
}

}  // namespace
}  // namespace rondo::device::test
