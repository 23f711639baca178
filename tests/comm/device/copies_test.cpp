// Algorithm::kCopyEngine: collectives in registered memory whose data cudaMemcpyAsync moves, between
// threads of one process and between ranks that count as processes of their own.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/device/registered_memory.hpp"

namespace rondo::device::test {
namespace {

constexpr uint64_t kLook = 1'000'000'000;  // of a kernel's time

/// Counts the copies into ranks' registered memory, and those that read another rank's at its
/// owner's address.
class CopyWatch {
 public:
  CopyWatch(FakeGpu& gpu, const Slabs& slabs, int ranks) : gpu_(gpu) {
    gpu_.before_copy = [this, &slabs, ranks](const std::byte* to, const std::byte* from) {
      for (int rank = 0; rank < ranks; ++rank) {
        const auto within = [&](const std::byte* at) {
          return at >= slabs.begin(rank) && at < slabs.begin(rank) + kSlab;
        };
        if (!within(to)) continue;
        ++copies;
        for (int other = 0; other < ranks; ++other) {
          const std::byte* const theirs = slabs.begin(other);
          if (other != rank && from >= theirs && from < theirs + kSlab) ++at_owners_address;
        }
      }
    };
  }
  ~CopyWatch() { gpu_.before_copy = {}; }
  CopyWatch(const CopyWatch&) = delete;
  CopyWatch& operator=(const CopyWatch&) = delete;

  std::atomic<int> copies{0}, at_owners_address{0};

 private:
  FakeGpu& gpu_;
};

/// Every rank's at the same offset, but for a gather in place: there In is.
AllPlaced place_alike(const Slabs& slabs, const std::vector<Call>& calls, int size) {
  AllPlaced found(calls.size());
  size_t used = 64;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    const size_t block = call.count * size_of(call.type);
    const size_t bytes = Buffers(call, 0, size).memory().size();
    const auto ranks = static_cast<size_t>(size);
    const bool gathers_in_place = call.collective == Collective::kGather && call.in_place;
    for (int rank = 0; rank < size; ++rank) {
      const auto behind = static_cast<size_t>(size + call.root - rank);
      const size_t shift = gathers_in_place ? behind * block : ranks * block;
      found[i].emplace_back(call, rank, size, slabs.begin(rank) + used + shift);
    }
    used = (used + 2 * ranks * block + bytes + 63) / 64 * 64;
    REQUIRE(used <= kSlab);
  }
  return found;
}

std::vector<Call> every_call(int size) {
  std::vector<Call> calls;
  for (const Collective collective : {Collective::kAllGather, Collective::kBroadcast,
                                      Collective::kGather, Collective::kAllToAll}) {
    for (const size_t count : {0, 1, 7, 333}) {
      for (const bool in_place : {false, true}) {
        if (in_place && !algorithms::is_in_place_safe(collective, Algorithm::kCopyEngine)) continue;
        for (const DataType type : {DataType::kUint8, DataType::kBFloat16, DataType::kFloat64}) {
          calls.push_back({.collective = collective,
                           .count = count,
                           .type = type,
                           .root = size / 2,
                           .algorithm = Algorithm::kCopyEngine,
                           .in_place = in_place});
        }
      }
    }
  }
  return calls;
}

/// On all ranks together.
int copies_of(const std::vector<Call>& calls, int size) {
  int copies = 0;
  for (const Call& call : calls) {
    if (size == 1 || call.count == 0) continue;  // by a kernel, and nothing
    const bool has_root =
        call.collective == Collective::kBroadcast || call.collective == Collective::kGather;
    const int writers = has_root ? 1 : size;
    copies += writers * (size - 1) + (call.in_place ? 0 : writers);
  }
  return copies;
}

/// A few calls on every rank, then the next few: one rank's must not fill what may be in flight, as
/// this thread issues its peers' only after that.
void issue_in_parts(World& world, const std::vector<Call>& calls, AllPlaced& found) {
  constexpr size_t kAtOnce = 10;
  for (size_t first = 0; first < calls.size(); first += kAtOnce) {
    const size_t last = std::min(first + kAtOnce, calls.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      for (size_t i = first; i < last; ++i) {
        INFO(calls[i].to_string() << ", rank " << rank);
        must(issue(world[rank], calls[i], found[i][rank], world.on_stream(rank)));
      }
    }
  }
}

std::vector<Call> by_auto(std::vector<Call> calls) {
  for (Call& call : calls) call.algorithm = Algorithm::kAuto;
  return calls;
}

CallOptions by_copies(const World& world, int rank) {
  return world.on_stream(rank, Algorithm::kCopyEngine);
}

/// An all_gather by copies.
Status gather(World& world, int rank, const void* in, void* out, size_t count = 100) {
  return world[rank].all_gather(in, out, count, DataType::kInt32, by_copies(world, rank));
}

bool all_are(const int32_t* values, size_t count, int32_t wanted) {
  return std::count(values, values + count, wanted) == static_cast<ptrdiff_t>(count);
}

TEST_CASE("By copies, every collective gives the host's bits, and only copies move the data") {
  for (const int size : testing::sizes({1, 2, 3, 4, 5, 7})) {
    for (const int ranks_of_a_process : {1, 2, size}) {
      DYNAMIC_SECTION(size << " ranks, " << ranks_of_a_process << " to a process") {
        RegisteredRig world(size, processes(ranks_of_a_process));
        CopyWatch watch(*world.gpu, world.slabs, size);
        const auto calls = every_call(size);
        const auto wanted = on_host(by_auto(calls), size);
        AllPlaced found = place_alike(world.slabs, calls, size);
        const uint64_t sent = world[0].stats().bytes_sent;
        world.gpu->launches = 0;
        issue_in_parts(world, calls, found);
        check_all(world, calls, found, wanted);
        CHECK(watch.copies == copies_of(calls, size));
        int launches = 0;  // a call without elements is one of nothing
        for (const Call& call : calls) launches += size * (call.count > 0 ? 2 : 1);
        if (size > 1) CHECK(world.gpu->launches == launches);
        if (ranks_of_a_process == 1) CHECK(watch.at_owners_address == 0);
        CHECK((size == 1 || world[0].stats().bytes_sent > sent));
      }
    }
  }
}

TEST_CASE("Copies keep the order of a stream, between other operations and in groups") {
  RegisteredRig world(3);
  constexpr size_t kCount = 100;
  constexpr int kTurns = 20;
  // all_reduce into A; all_gather of A into B; all_reduce of A once more, which must wait until peers
  // have fetched it; all_to_all of B into C.
  for (const bool grouped : {false, true}) {
    for (int turn = 0; turn < kTurns; ++turn) {
      for (int rank = 0; rank < 3; ++rank) {
        Communicator& c = world[rank];
        int32_t *const a = world.slabs.ints(rank), *const b = a + kCount,
                       *const out = b + 3 * kCount;
        std::fill_n(a, turn == 0 ? kCount : 0, rank + 1);
        if (grouped) must(c.group_start());
        must(c.all_reduce(a, a, kCount, DataType::kInt32, ReduceOp::kMax, world.on_stream(rank)));
        must(gather(world, rank, a, b, kCount));
        must(sum(c, a, a, kCount, world.on_stream(rank)));
        must(c.all_to_all(b, out, kCount, DataType::kInt32, by_copies(world, rank)));
        if (grouped) must(c.group_end());
      }
    }
    finish(world);
    int32_t before = 1;  // 3 in the first maximum, three times as much after each turn
    for (int turn = 0; turn < kTurns; ++turn) before *= 3;
    const auto last = static_cast<int32_t>(3u * static_cast<uint32_t>(before));
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(all_are(world.slabs.ints(rank), kCount, last));
      CHECK(all_are(world.slabs.ints(rank) + kCount, 6 * kCount, before));
    }
  }
}

TEST_CASE("Copies begin when the input is there, and end before it is the caller's again") {
  RegisteredRig world(2);
  std::atomic<bool> is_overwritten{false}, was_early{false};
  // Right code passes at any speed; the pauses give wrong code its chance.
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  world.gpu->before_copy = [&](const std::byte* to, const std::byte* from) {
    const std::byte* const own = world.slabs.begin(1);
    const auto is_own = [&](const std::byte* at) { return at >= own && at < own + kSlab; };
    if (!is_own(to) || is_own(from)) return;
    for (int i = 0; i < 50; ++i) {
      was_early = was_early || is_overwritten;
      pause();
    }
  };
  int32_t* const data[] = {world.slabs.ints(0), world.slabs.ints(1)};
  std::fill_n(data[0], 300, -1);
  std::fill_n(data[1], 300, 2);
  world.gpu->enqueue(world.stream(0), [&] {
    for (int i = 0; i < 50; ++i) pause();
    std::fill_n(data[0], 100, 1);
  });
  for (int rank = 0; rank < 2; ++rank) must(gather(world, rank, data[rank], data[rank] + 100));
  world.gpu->enqueue(world.stream(0), [&] {
    is_overwritten = true;
    std::fill_n(data[0], 100, 3);
  });
  finish(world);
  world.gpu->before_copy = {};
  CHECK_FALSE(was_early);
  for (const int32_t* const own : data) {
    CHECK(all_are(own + 100, 100, 1));
    CHECK(all_are(own + 200, 100, 2));
  }
}

// A copy that waits in a queue which GPUs' streams share would hold up the kernel for which it waits.
TEST_CASE("A rank copies its own data, too, when the ranks have met, unless others wait for that") {
  RegisteredRig world(2);
  CopyWatch watch(*world.gpu, world.slabs, 2);
  const auto gather_on = [&](int rank) {
    return gather(world, rank, world.slabs.ints(rank), world.slabs.ints(rank) + 300);
  };
  const int before = world.gpu->launches;
  must(gather_on(0));
  // What the stream has before its barrier has happened when that runs.
  testing::await("rank 0's barrier runs", [&] { return world.gpu->launches > before; });
  CHECK(watch.copies == 0);
  must(gather_on(1));
  finish(world);
  CHECK(watch.copies == 4);
}

TEST_CASE("Copies follow the operation before them, whatever its stream") {
  RegisteredRig world(2);
  const Stream others[] = {world.add_stream(), world.add_stream()};
  for (const Collective collective :
       {Collective::kAllGather, Collective::kAllToAll, Collective::kBroadcast}) {
    INFO(name(collective));
    std::atomic<bool> goes_on{false};
    CopyWatch watch(*world.gpu, world.slabs, 2);
    for (int rank = 0; rank < 2; ++rank) {
      Communicator& c = world[rank];
      int32_t *const in = world.slabs.ints(rank), *const out = in + 300;
      std::fill_n(in, 600, rank + 1);
      world.gpu->enqueue(world.stream(rank), [&] {
        while (!goes_on) std::this_thread::yield();
      });
      must(sum(c, in, in, 200, world.on_stream(rank)));
      const CallOptions options = {.algorithm = Algorithm::kCopyEngine, .stream = others[rank]};
      must(collective == Collective::kAllGather
               ? c.all_gather(in, out, 100, DataType::kInt32, options)
           : collective == Collective::kAllToAll
               ? c.all_to_all(in, out, 100, DataType::kInt32, options)
               : c.broadcast(in, out, 100, DataType::kInt32, 0, options));
    }
    // Right code passes at any speed; the pause gives wrong code its chance.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const bool was_early = watch.copies > 0;
    goes_on = true;
    finish(world);
    CHECK_FALSE(was_early);
    const size_t count = collective == Collective::kBroadcast ? 100 : 200;
    for (int rank = 0; rank < 2; ++rank) CHECK(all_are(world.slabs.ints(rank) + 300, count, 3));
  }
}

TEST_CASE("Every replay of a graph copies, until the registration ends: then it is a mismatch") {
  RegisteredRig world(3);
  const auto calls = every_call(3);
  const auto wanted = on_host(by_auto(calls), 3);
  AllPlaced found = place_alike(world.slabs, calls, 3);
  auto graphs = capture_all(world, [&](int rank) { issue_on(world, rank, calls, found); });
  CopyWatch watch(*world.gpu, world.slabs, 3);
  for (int turn = 1; turn <= 3; ++turn) {
    put_all(found);
    replay_all(graphs);
    check_all(world, calls, found, wanted);
    CHECK(watch.copies == turn * copies_of(calls, 3));
  }
  require_unregistered(world, world.slabs);
  // Of memory that is not there any more, on a GPU an error of CUDA's.
  world.gpu->makes_copies = false;
  replay_all(graphs);
  world.synchronize();
  check_all_failed(world, Code::kMismatch, {"whose registration has ended: capture it again"});
  CHECK(watch.at_owners_address == 0);
}

TEST_CASE("Where ranks pass different places of registered memory, every rank reports it") {
  struct Wrong {
    const char* what;
    size_t offset;  // of rank 1's buffers
    bool other;     // in another registration
    bool in_place;  // rank 1's
    const char* says;
  };
  const Wrong wrongs[] = {
      {"another offset", 4096, false, false, "same registration, at the same offset"},
      {"another registration", 0, true, false, "of another one"},
      {"in place", 0, false, true, ", in place"},
      {"beyond what rank 0 has", 4096, true, false, "has registered, which is 1000 bytes"}};
  for (const int ranks_of_a_process : {1, 2}) {
    for (const Wrong& wrong : wrongs) {
      DYNAMIC_SECTION(wrong.what << ", " << ranks_of_a_process << " to a process") {
        RegisteredRig world(2, processes(ranks_of_a_process));
        Slabs others(world, *world.gpu), outs(world, *world.gpu);
        for (const Status& status : register_all_but(0, others.begin(0), 1000, world, others)) {
          must(status);
        }
        for (int rank = 0; rank < 2; ++rank) {  // brings the barrier's program to the device
          must(gather(world, rank, world.slabs.begin(rank), outs.begin(rank)));
        }
        world.synchronize();
        world.gpu->makes_copies = !wrong.in_place;  // rank 0 would read what rank 1 writes
        std::byte* const in = (wrong.other ? others : world.slabs).begin(1) + wrong.offset;
        const Status called[] = {
            gather(world, 0, world.slabs.begin(0), outs.begin(0)),
            wrong.in_place ? gather(world, 1, in + 400, in) : gather(world, 1, in, outs.begin(1))};
        for (const Status& status : called) {
          INFO(status.to_string());
          CHECK((status.ok() || status.code() == Code::kMismatch));
        }
        world.synchronize();
        check_all_failed(world, Code::kMismatch,
                         {wrong.says, "all_gather(int32, count 100) by copy-engine"});
        for (int rank = 0; rank < 2; ++rank) {
          CHECK(world[rank].barrier(world.on_stream(rank)).code() == Code::kMismatch);
        }
      }
    }
  }
}

TEST_CASE("A rank that would fetch beyond what any peer has registered launches nothing") {
  SlabRig world(3);
  // Rank 1 fetches from rank 2 first, whose part is long enough.
  std::byte* const of_rank_0 = world.slabs.begin(0);
  for (const Status& status : register_all_but(0, of_rank_0, 1000, world, world.slabs)) {
    must(status);
  }
  world.gpu->launches = 0;
  CopyWatch watch(*world.gpu, world.slabs, 3);
  std::byte* const memory = world.slabs.begin(1);
  check_failed(gather(world, 1, memory + 4096, memory + 8192), Code::kMismatch,
               {"of what rank 0 has registered, which is 1000 bytes"});
  world.synchronize();
  CHECK(world.gpu->launches == 0);
  CHECK(watch.copies == 0);
}

TEST_CASE("By copies, a disagreement about the call, and a rank that never comes, are named") {
  for (const bool comes : {true, false}) {
    RegisteredRig world(3);
    for (int rank = 0; rank < (comes ? 3 : 2); ++rank) {
      std::byte* const memory = world.slabs.begin(rank);
      must(gather(world, rank, memory, memory + 65536, rank == 2 ? 50 : 100));
    }
    world.gpu->ns_per_look = comes ? 0 : kLook;
    world.synchronize();
    check_all_failed(world, comes ? Code::kMismatch : Code::kTimeout,
                     {comes ? "rank 2 called all_gather(int32, count 50)" : "has not called it"});
  }
}

TEST_CASE("Copies are refused where they cannot be") {
  Setup setup = processes();
  setup.config.algorithm = Algorithm::kCopyEngine;
  SlabRig world(2, setup);
  std::byte* const memory = world.slabs.begin(0);
  const CallOptions options = by_copies(world, 0);
  says(world[0].all_reduce(memory, memory, 8, DataType::kInt32, ReduceOp::kSum, options),
       "there is no all_reduce by copy-engine");
  says(gather(world, 0, memory, memory + 4096, 8), "unless memory has been registered");
  require_registered(world, world.slabs);
  says(world[0].all_to_all(memory, memory, 8, DataType::kInt32, options), "in place");
  // Config::algorithm holds for what it can do.
  CopyWatch watch(*world.gpu, world.slabs, 2);
  const Call gathering = {.collective = Collective::kAllGather, .count = 1000};
  const std::vector<Call> calls = {{.collective = Collective::kAllReduce, .count = 1000},
                                   gathering};
  compare(world, calls, place_alike(world.slabs, calls, 2));
  CHECK(watch.copies == copies_of({gathering}, 2));
  CHECK(world[0].plan(Collective::kAllGather, 1000, DataType::kInt32, true).algorithm ==
        Algorithm::kCopyEngine);
  // A buffer that is not registered ends the communicator, as with every algorithm that is forced.
  Slabs plain(world, *world.gpu);
  check_failed(gather(world, 0, plain.begin(0), memory, 8), Code::kUnavailable,
               {"all_gather(int32, count 8) by copy-engine: rank 0's input (32 bytes at ",
                "register it on every rank (register_device_memory)"});
  CHECK(world[1].status().code() == Code::kUnavailable);

  run_on_host(2, [](Communicator& c) {
    int data[2] = {};
    expect_failed(c.all_gather(data + c.rank(), data, 1, DataType::kInt32,
                               {.algorithm = Algorithm::kCopyEngine}),
                  Code::kUnavailable, "Config::device");
  });
}

TEST_CASE("Copies are never chosen unasked") {
  RegisteredRig world(2);
  for (size_t count = 1; count <= size_t{1} << 40; count *= 2) {
    for (const Collective collective :
         {Collective::kAllGather, Collective::kBroadcast, Collective::kAllToAll}) {
      CHECK(world[0].plan(collective, count, DataType::kInt32, true).algorithm !=
            Algorithm::kCopyEngine);
    }
  }
}

TEST_CASE("Whichever call of CUDA fails in an operation by copies, a rank learns of it") {
  fail_each_call(20, [](Failing& failing) {
    RegisteredRig world(2);
    failing.begin(*world.gpu);
    for (int rank = 0; rank < 2; ++rank) {
      int32_t* const in = world.slabs.ints(rank);
      std::fill_n(in, 100, rank + 1);
      failing.hear(gather(world, rank, in, in + 1000));
    }
    failing.end(*world.gpu);
    world.synchronize();
    for (int rank = 0; rank < 2; ++rank) {
      const int32_t* const out = world.slabs.ints(rank) + 1000;
      failing.right = failing.right && all_are(out, 100, 1) && all_are(out + 100, 100, 2);
    }
  });
}

}  // namespace
}  // namespace rondo::device::test
