// Messages between GPUs, alone and in groups with collectives: that they arrive, in one launch, in
// whatever order ranks name them, and what is said when they do not fit together.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "tests/comm/device/posts.hpp"

namespace rondo::device::test {
namespace {

TEST_CASE("On a device, a group's messages arrive in one launch, whatever their order") {
  for (const int size : testing::sizes({2, 3, 1, 4, 5, 7})) {
    DYNAMIC_SECTION(size << " ranks") {
      Rig world(size, {.gpu = gpus()});
      std::vector<Ints> sums(2 * static_cast<size_t>(size), Ints(1, 1));
      // Nothing, one byte, what fills slots to the last byte and not quite, what several channels share.
      exchange(world, {0, 1, 256, 8 * 256, 1999, 150'001, 3}, [&](int rank) {
        for (int i = 0; i < 2; ++i) must(sum(world, rank, sums[2 * rank + i]));
        REQUIRE(world.gpu->idle(world.stream(rank)));  // nothing before the group ends
        CHECK(world[rank].stats().operations == 0);
      });
      CHECK(sums == std::vector<Ints>(sums.size(), Ints(1, size)));
      CHECK(world.gpu->launches == size);
    }
  }
}

TEST_CASE("On a device, messages and collectives follow each other on a stream, and in graphs") {
  Rig world(2);
  Ints values[2] = {Ints(1, 5), Ints(1, 0)};
  const auto call = [&](int rank) {
    const CallOptions options = world.on_stream(rank);
    must(rank == 0 ? world[0].send(values[0].data(), 1, DataType::kInt32, 1, options)
                   : world[1].recv(values[1].data(), 1, DataType::kInt32, 0, options));
    must(sum(world, rank, values[rank]));
  };
  for (int rank = 0; rank < 2; ++rank) call(rank);
  world.synchronize();
  auto graphs = capture_all(world, call);
  for (const Ints& value : values) CHECK(value == Ints(1, 10));
  for (int replay = 0; replay < 2; ++replay) replay_all(graphs);
  finish(world);
  for (const Ints& value : values) CHECK(value == Ints(1, 40));
}

TEST_CASE("A group's operations on the same buffers are one after the other") {
  const Setup setup;
  setup.gpu->first_block_is_late = true;
  Rig world(2, setup);
  constexpr size_t kCount = 4096;
  Ints values[2] = {Ints(kCount, 1), Ints(kCount, 1)}, others[2] = {Ints(1, 1), Ints(1, 1)};
  for (int rank = 0; rank < 2; ++rank) {
    Communicator& c = world[rank];
    int32_t* const value = values[rank].data();
    const CallOptions options = world.on_stream(rank);
    must(c.group_start());
    must(rank == 0 ? c.recv(value + 50, 1000, DataType::kInt32, 1, options)
                   : c.send(value + 2000, 1000, DataType::kInt32, 0, options));
    must(sum(c, value, value, kCount, options));
    must(sum(c, value, value, 100, options));
    must(sum(world, rank, others[rank]));  // which has nothing to do with them
    must(c.broadcast(value, value, kCount, DataType::kInt32, 0, options));
    must(c.group_end());
  }
  finish(world);
  Ints wanted(kCount, 2);
  std::fill_n(wanted.begin(), 100, 4);
  for (const Ints& value : values) CHECK((value == wanted));
  for (const Ints& other : others) CHECK(other == Ints(1, 2));
}

TEST_CASE(
    "Operations of a group that touch each other's buffers are launches one after the other") {
  Rig world(2);
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
    Ints data[2];
    for (int rank = 0; rank < 2; ++rank) {
      for (int32_t buffer = 0; buffer < 4; ++buffer) {
        data[rank].insert(data[rank].end(), 100, (buffer + 1) * (rank + 1));
      }
    }
    const Ints wanted = {3, 6, 9, 12};  // their sums over both ranks
    const int before = world.gpu->launches;
    for (int rank = 0; rank < 2; ++rank) {
      int32_t* const at = data[rank].data();
      must(world[rank].group_start());
      for (const auto& [in, out] :
           {std::pair(each.in, each.out), std::pair(each.then_in, each.then_out)}) {
        must(sum(world[rank], at + 100 * in, at + 100 * out, 100, world.on_stream(rank)));
      }
      must(world[rank].group_end());
    }
    finish(world);
    CHECK(world.gpu->launches == before + 2 * each.launches);
    const int32_t first = wanted[each.in];
    const int32_t second = each.then_in == each.out ? 2 * first : wanted[each.then_in];
    for (const Ints& found : data) {
      CHECK(found[100 * each.then_out + 99] == second);
      if (each.then_out != each.out) CHECK(found[100 * each.out] == first);
    }
  }
}

TEST_CASE("A group of one rank does not wait for its own kernels, however many shapes are new") {
  Rig world(2);
  // More than the launches that may be in flight; rank 1's come from the same thread, after rank 0's.
  constexpr size_t kShapes = 500, kElements = kShapes * (kShapes + 1) / 2;
  Ints values[2] = {Ints(kElements, 1), Ints(kElements, 2)};
  for (int rank = 0; rank < 2; ++rank) {
    int32_t* data = values[rank].data();
    must(world[rank].group_start());
    for (size_t count = 1; count <= kShapes; data += count++) {
      must(world[rank].broadcast(data, data, count, DataType::kInt32, 0, world.on_stream(rank)));
    }
    must(world[rank].group_end());
  }
  finish(world);
  CHECK((values[1] == values[0]));
}

TEST_CASE("A group of more operations than a launch takes is several launches") {
  Rig world(2);
  std::vector<Ints> values(2 * 20, Ints(1, 1));
  for (int rank = 0; rank < 2; ++rank) {
    must(world[rank].group_start());
    for (int i = 0; i < 20; ++i) must(sum(world, rank, values[rank * 20 + i]));
    must(world[rank].group_end());
  }
  finish(world);
  CHECK(values == std::vector<Ints>(values.size(), Ints(1, 2)));
  CHECK(world.gpu->launches == 2 * 3);
}

TEST_CASE("A rank far ahead waits for its own kernels, and goes on when they do") {
  Rig world(2);
  constexpr int kCalls = 1200;
  Ints values[2] = {Ints(1, 1), Ints(1, 1)};
  std::atomic<int> called[2] = {};
  const auto call_all = [&](int rank) {
    int32_t* const value = values[rank].data();
    while (called[rank] < kCalls &&
           world[rank]
               .all_reduce(value, value, 1, DataType::kInt32, ReduceOp::kMax, world.on_stream(rank))
               .ok()) {
      ++called[rank];
    }
  };
  std::thread ahead(call_all, 0);
  constexpr int kFew = 382;  // the copy of the program counts as a launch
  for (int look = 0; look < 10'000 && called[0] < kFew; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // A while, in which it would call them all.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(called[0] == kFew);
  call_all(1);
  ahead.join();
  for (const auto& each : called) CHECK(each == kCalls);
  finish(world);
}

TEST_CASE("Messages of GPUs that do not fit together are told, with both sizes") {
  Rig world(2);
  std::vector<float> data(100'000);
  must(world[0].send(data.data(), 50'000, DataType::kFloat32, 1, world.on_stream(0)));
  must(world[1].recv(data.data(), 40'000, DataType::kFloat32, 0, world.on_stream(1)));
  world.synchronize();
  check_all_failed(world, Code::kMismatch,
                   {"rank 0 sends 50000 float to rank 1, which expects 40000 float"});
}

TEST_CASE("A message whose other end never comes is named, and abort() ends one that waits") {
  for (const bool impatient : {true, false}) {
    const Setup setup;
    if (impatient) setup.gpu->ns_per_look = 1'000'000'000;
    Rig world(2, setup);
    std::vector<float> data(100'000);
    const auto send = [&](size_t count) {
      return world[0].send(data.data(), count, DataType::kFloat32, 1, world.on_stream(0));
    };
    must(world[0].group_start());
    must(send(50'000));
    must(send(7));
    must(world[0].group_end());
    if (!impatient) world[1].abort("that is all");
    world.synchronize();
    if (impatient) {
      check_all_failed(world, Code::kTimeout,
                       {"send(float, count 50000) to rank 1 has not moved within its timeout on "
                        "rank 0: rank 1 has not called the matching recv"});
    } else {
      check_all_failed(world, Code::kAborted, {"rank 1 aborted: that is all"});
    }
    CHECK_FALSE(send(7).ok());
  }
}

}  // namespace
}  // namespace rondo::device::test
