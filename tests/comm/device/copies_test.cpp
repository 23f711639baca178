// Algorithm::kCopyEngine: collectives in registered memory whose data the stand-in's cudaMemcpyAsync
// moves, between threads of one process and between ranks that count as processes of their own.
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

bool is_gather(const Call& call) { return call.collective == Collective::kGather; }

/// Every rank's at the same offset, but for a gather in place: there In is.
AllPlaced place_alike(const Slabs& slabs, const std::vector<Call>& calls, int size) {
  AllPlaced found(calls.size());
  size_t used = 64;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    const size_t block = call.count * size_of(call.type);
    const size_t bytes = Buffers(call, 0, size).memory().size();
    const auto ranks = static_cast<size_t>(size);
    for (int rank = 0; rank < size; ++rank) {
      const auto behind = static_cast<size_t>(size + call.root - rank);
      const size_t shift = is_gather(call) && call.in_place ? behind * block : ranks * block;
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
int copies_of(const Call& call, int size) {
  if (size == 1 || call.count == 0) return 0;  // by a kernel, and nothing
  const int own_at_all = call.in_place ? 0 : size, own_at_root = call.in_place ? 0 : 1;
  switch (call.collective) {
    case Collective::kBroadcast:
    case Collective::kGather:
      return size - 1 + own_at_root;
    default:
      return size * (size - 1) + own_at_all;
  }
}

/// A few calls on every rank, then the next few: one rank's must not fill what may be in flight, as
/// this thread issues its peers' only after that.
void issue_in_parts(World& world, const std::vector<Call>& calls, AllPlaced& found) {
  constexpr size_t kAtOnce = 10;
  for (size_t first = 0; first < calls.size(); first += kAtOnce) {
    for (int rank = 0; rank < world.size(); ++rank) {
      for (size_t i = first; i < std::min(first + kAtOnce, calls.size()); ++i) {
        INFO(calls[i].to_string() << ", rank " << rank);
        const Status status = issue(world[rank], calls[i], found[i][static_cast<size_t>(rank)],
                                    world.on_stream(rank));
        INFO(status.to_string());
        REQUIRE(status.ok());
      }
    }
  }
}

std::vector<Call> by_auto(std::vector<Call> calls) {
  for (Call& call : calls) call.algorithm = Algorithm::kAuto;
  return calls;
}

TEST_CASE("By copies, every collective gives the host's bits, and only copies move the data") {
  for (const int size : testing::sizes({1, 2, 3, 4, 5, 7})) {
    for (const int ranks_of_a_process : {1, 2, size}) {
      DYNAMIC_SECTION(size << " ranks, " << ranks_of_a_process << " to a process") {
        const auto gpu = make_gpu(ranks_of_a_process);
        const Installed installed(gpu);
        {
          World world(gpu, size);
          REQUIRE(world.all_created());
          Slabs slabs(world, *gpu);
          require_registered(world, slabs);
          CopyWatch watch(*gpu, slabs, size);
          const auto calls = every_call(size);
          const auto wanted = on_host(by_auto(calls), size);
          AllPlaced found = place_alike(slabs, calls, size);
          const uint64_t sent = world[0].stats().bytes_sent;
          gpu->launches = 0;
          issue_in_parts(world, calls, found);
          world.synchronize();
          check_all(world, calls, found, wanted);
          int copies = 0, launches = 0;
          for (const Call& call : calls) {
            copies += copies_of(call, size);
            launches +=
                size * (call.count > 0 ? 2 : 1);  // a call without elements is one of nothing
          }
          CHECK(watch.copies == copies);
          if (size > 1) CHECK(gpu->launches == launches);
          if (ranks_of_a_process == 1) CHECK(watch.at_owners_address == 0);
          CHECK(gpu->trespasses == 0);
          CHECK((size == 1 || world[0].stats().bytes_sent > sent));
          require_unregistered(world, slabs);
        }
        CHECK(gpu->alive() == 0);
        CHECK(gpu->freed_while_imported == 0);
      }
    }
  }
}

TEST_CASE("Copies keep the order of a stream, between other operations and in groups") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 3, roomy_config());
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  const auto data = [&](int rank) { return reinterpret_cast<int32_t*>(slabs.begin(rank)); };
  constexpr size_t kCount = 100;
  // all_reduce into A; all_gather of A into B; all_reduce of A once more, which must wait until peers
  // have fetched it; all_to_all of B into C.
  for (const bool grouped : {false, true}) {
    for (int rank = 0; rank < 3; ++rank) std::fill_n(data(rank), 8 * kCount, rank + 1);
    CallOptions by_copies;
    by_copies.algorithm = Algorithm::kCopyEngine;
    for (int turn = 0; turn < 20; ++turn) {
      for (int rank = 0; rank < 3; ++rank) {
        Communicator& c = world[rank];
        std::fill_n(data(rank), turn == 0 ? kCount : 0, rank + 1);
        int32_t *const a = data(rank), *const b = a + kCount, *const out = b + 3 * kCount;
        by_copies.stream = world.stream(rank);
        if (grouped) REQUIRE(c.group_start().ok());
        REQUIRE(c.all_reduce(a, a, kCount, DataType::kInt32, ReduceOp::kMax, world.on_stream(rank))
                    .ok());
        REQUIRE(c.all_gather(a, b, kCount, DataType::kInt32, by_copies).ok());
        REQUIRE(c.all_reduce(a, a, kCount, DataType::kInt32, ReduceOp::kSum, world.on_stream(rank))
                    .ok());
        REQUIRE(c.all_to_all(b, out, kCount, DataType::kInt32, by_copies).ok());
        if (grouped) REQUIRE(c.group_end().ok());
      }
    }
    world.synchronize();
    int32_t before = 1;  // 3 in the first maximum, three times as much after each turn
    for (int turn = 0; turn < 20; ++turn) before *= 3;
    for (int rank = 0; rank < 3; ++rank) {
      INFO(world[rank].status().to_string());
      CHECK(world[rank].status().ok());
      bool right = true;
      for (size_t i = 0; i < kCount; ++i) {
        right = right && data(rank)[i] == static_cast<int32_t>(3u * static_cast<uint32_t>(before));
      }
      for (size_t i = kCount; i < 7 * kCount; ++i) right = right && data(rank)[i] == before;
      CHECK(right);
    }
  }
}

TEST_CASE("Copies begin when the input is there, and end before it is the caller's again") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  std::atomic<bool> is_overwritten{false}, was_early{false};
  // Right code passes at any speed; the pauses give wrong code its chance.
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  gpu->before_copy = [&](const std::byte* to, const std::byte* from) {
    const std::byte* const own = slabs.begin(1);
    const auto is_own = [&](const std::byte* at) { return at >= own && at < own + kSlab; };
    if (!is_own(to) || is_own(from)) return;
    for (int i = 0; i < 50; ++i) {
      was_early = was_early || is_overwritten;
      pause();
    }
  };
  const auto data = [&](int rank) { return reinterpret_cast<int32_t*>(slabs.begin(rank)); };
  std::fill_n(data(0), 300, -1);
  std::fill_n(data(1), 300, 2);
  gpu->enqueue(world.stream(0), [&] {
    for (int i = 0; i < 50; ++i) pause();
    std::fill_n(data(0), 100, 1);
  });
  for (int rank = 0; rank < 2; ++rank) {
    CallOptions options = world.on_stream(rank);
    options.algorithm = Algorithm::kCopyEngine;
    REQUIRE(
        world[rank].all_gather(data(rank), data(rank) + 100, 100, DataType::kInt32, options).ok());
  }
  gpu->enqueue(world.stream(0), [&] {
    is_overwritten = true;
    std::fill_n(data(0), 100, 3);
  });
  world.synchronize();
  gpu->before_copy = {};
  CHECK_FALSE(was_early);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(world[rank].status().ok());
    CHECK(std::all_of(data(rank) + 100, data(rank) + 200, [](int32_t x) { return x == 1; }));
    CHECK(std::all_of(data(rank) + 200, data(rank) + 300, [](int32_t x) { return x == 2; }));
  }
}

// A copy that waits in a queue which GPUs' streams share would hold up the kernel for which it waits.
TEST_CASE("A rank copies its own data, too, when the ranks have met, unless others wait for that") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  CopyWatch watch(*gpu, slabs, 2);
  const auto gather = [&](int rank) {
    auto* const in = reinterpret_cast<int32_t*>(slabs.begin(rank));
    CallOptions options = world.on_stream(rank);
    options.algorithm = Algorithm::kCopyEngine;
    return world[rank].all_gather(in, in + 300, 100, DataType::kInt32, options);
  };
  const int before = gpu->launches;
  REQUIRE(gather(0).ok());
  // What the stream has before its barrier has happened when that runs.
  testing::await("rank 0's barrier runs", [&] { return gpu->launches > before; });
  CHECK(watch.copies == 0);
  REQUIRE(gather(1).ok());
  for (int rank = 0; rank < 2; ++rank) REQUIRE(gpu->synchronize(world.stream(rank)).ok());
  CHECK(watch.copies == 4);
}

TEST_CASE("Copies follow the operation before them, whatever its stream") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 2);
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  require_registered(world, slabs);
  const auto data = [&](int rank) { return reinterpret_cast<int32_t*>(slabs.begin(rank)); };
  std::vector<Stream> others;
  for (int rank = 0; rank < 2; ++rank) others.push_back(gpu->create_stream().value());
  for (const Collective collective :
       {Collective::kAllGather, Collective::kAllToAll, Collective::kBroadcast}) {
    INFO(name(collective));
    std::atomic<bool> goes_on{false}, was_early{false};
    for (int rank = 0; rank < 2; ++rank) {
      std::fill_n(data(rank), 600, rank + 1);
      gpu->enqueue(world.stream(rank), [&] {
        while (!goes_on) std::this_thread::yield();
      });
    }
    {
      CopyWatch watch(*gpu, slabs, 2);
      for (int rank = 0; rank < 2; ++rank) {
        Communicator& c = world[rank];
        int32_t *const in = data(rank), *const out = in + 300;
        REQUIRE(c.all_reduce(in, in, 200, DataType::kInt32, ReduceOp::kSum, world.on_stream(rank))
                    .ok());
        CallOptions options;
        options.stream = others[static_cast<size_t>(rank)];
        options.algorithm = Algorithm::kCopyEngine;
        const Status status = collective == Collective::kAllGather
                                  ? c.all_gather(in, out, 100, DataType::kInt32, options)
                              : collective == Collective::kAllToAll
                                  ? c.all_to_all(in, out, 100, DataType::kInt32, options)
                                  : c.broadcast(in, out, 100, DataType::kInt32, 0, options);
        REQUIRE(status.ok());
      }
      // Right code passes at any speed; the pause gives wrong code its chance.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      was_early = watch.copies > 0;
      goes_on = true;
      for (const Stream stream : others) REQUIRE(gpu->synchronize(stream).ok());
    }
    CHECK_FALSE(was_early);
    const size_t count = collective == Collective::kBroadcast ? 100 : 200;
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(world[rank].status().ok());
      const int32_t* const out = data(rank) + 300;
      CHECK(std::all_of(out, out + count, [](int32_t x) { return x == 3; }));
    }
  }
  for (const Stream stream : others) REQUIRE(gpu->destroy_stream(stream).ok());
}

TEST_CASE("Replays of a graph copy anew, until the registration ends: then it is a mismatch") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  {
    World world(gpu, 3);
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    require_registered(world, slabs);
    const auto calls = every_call(3);
    const auto wanted = on_host(by_auto(calls), 3);
    AllPlaced found = place_alike(slabs, calls, 3);
    std::vector<FakeGpu::Graph> graphs;
    for (int rank = 0; rank < 3; ++rank) REQUIRE(gpu->begin_capture(world.stream(rank)).ok());
    issue_all(world, calls, found);
    for (int rank = 0; rank < 3; ++rank) {
      graphs.push_back(gpu->end_capture(world.stream(rank)).value());
    }
    CopyWatch watch(*gpu, slabs, 3);
    int copies = 0;
    for (const Call& call : calls) copies += copies_of(call, 3);
    const auto replay = [&] {
      for (int rank = 0; rank < 3; ++rank) {
        gpu->replay(graphs[static_cast<size_t>(rank)], world.stream(rank));
      }
      world.synchronize();
    };
    for (int turn = 1; turn <= 3; ++turn) {
      for (auto& ranks : found) {
        for (Placed& each : ranks) each.put();
      }
      replay();
      check_all(world, calls, found, wanted);
      CHECK(watch.copies == turn * copies);
    }
    require_unregistered(world, slabs);
    gpu->makes_copies = false;  // of memory that is not there any more, on a GPU an error of CUDA's
    replay();
    gpu->makes_copies = true;
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(world[rank].status().code() == Code::kMismatch);
      says(world[rank].status(), "whose registration has ended: capture it again");
    }
    CHECK(watch.at_owners_address == 0);
    for (const FakeGpu::Graph graph : graphs) REQUIRE(gpu->destroy_graph(graph).ok());
  }
  CHECK(gpu->alive() == 0);
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
        const auto gpu = make_gpu(ranks_of_a_process);
        const Installed installed(gpu);
        World world(gpu, 2);
        REQUIRE(world.all_created());
        Slabs slabs(world, *gpu), others(world, *gpu), outs(world, *gpu);
        require_registered(world, slabs);
        for (const Status& status : on_all(world, [&](int rank) {
               return world[rank].register_memory(others.begin(rank), rank == 0 ? 1000 : kSlab);
             })) {
          REQUIRE(status.ok());
        }
        const auto gather = [&](int rank, const std::byte* in, std::byte* out) {
          CallOptions options = world.on_stream(rank);
          options.algorithm = Algorithm::kCopyEngine;
          return world[rank].all_gather(in, out, 100, DataType::kInt32, options);
        };
        for (int rank = 0; rank < 2; ++rank) {  // brings the barrier's program to the device
          REQUIRE(gather(rank, slabs.begin(rank), outs.begin(rank)).ok());
        }
        world.synchronize();
        gpu->makes_copies = !wrong.in_place;  // rank 0 would read what rank 1 writes
        for (int rank = 0; rank < 2; ++rank) {
          std::byte* in = (rank == 1 && wrong.other ? others : slabs).begin(rank);
          std::byte* out = outs.begin(rank);
          if (rank == 1) in += wrong.offset;
          if (rank == 1 && wrong.in_place) {
            out = in;
            in += 400;
          }
          const Status status = gather(rank, in, out);
          INFO(status.to_string());
          CHECK((status.ok() || status.code() == Code::kMismatch));
        }
        world.synchronize();
        for (int rank = 0; rank < 2; ++rank) {
          const Status status = world[rank].status();
          CHECK(status.code() == Code::kMismatch);
          says(status, wrong.says);
          says(status, "all_gather(int32, count 100) by copy-engine");
          CHECK(world[rank].barrier(world.on_stream(rank)).code() == Code::kMismatch);
        }
      }
    }
  }
}

TEST_CASE("A rank that would fetch beyond what any peer has registered launches nothing") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  World world(gpu, 3);
  REQUIRE(world.all_created());
  Slabs slabs(world, *gpu);
  // Rank 1 fetches from rank 2 first, whose part is long enough.
  for (const Status& status : on_all(world, [&](int rank) {
         return world[rank].register_memory(slabs.begin(rank), rank == 0 ? 1000 : kSlab);
       })) {
    REQUIRE(status.ok());
  }
  gpu->launches = 0;
  CopyWatch watch(*gpu, slabs, 3);
  CallOptions options = world.on_stream(1);
  options.algorithm = Algorithm::kCopyEngine;
  std::byte* const memory = slabs.begin(1);
  const Status status =
      world[1].all_gather(memory + 4096, memory + 8192, 100, DataType::kInt32, options);
  CHECK(status.code() == Code::kMismatch);
  says(status, "of what rank 0 has registered, which is 1000 bytes");
  world.synchronize();
  CHECK(gpu->launches == 0);
  CHECK(watch.copies == 0);
}

TEST_CASE("By copies, a disagreement about the call, and a rank that never comes, are named") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  for (const bool comes : {true, false}) {
    World world(gpu, 3);
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    require_registered(world, slabs);
    for (int rank = 0; rank < (comes ? 3 : 2); ++rank) {
      CallOptions options = world.on_stream(rank);
      options.algorithm = Algorithm::kCopyEngine;
      std::byte* const memory = slabs.begin(rank);
      REQUIRE(
          world[rank]
              .all_gather(memory, memory + 65536, rank == 2 ? 50 : 100, DataType::kInt32, options)
              .ok());
    }
    gpu->ns_per_look = comes ? 0 : kLook;
    world.synchronize();
    gpu->ns_per_look = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const Status status = world[rank].status();
      CHECK(status.code() == (comes ? Code::kMismatch : Code::kTimeout));
      says(status, comes ? "rank 2 called all_gather(int32, count 50)" : "has not called it");
    }
  }
}

TEST_CASE("Copies are refused where they cannot be, and never chosen unasked") {
  const auto gpu = make_gpu();
  const Installed installed(gpu);
  Config config = roomy_config();
  config.algorithm = Algorithm::kCopyEngine;
  {
    World world(gpu, 2, config);
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    CallOptions options = world.on_stream(0);
    options.algorithm = Algorithm::kCopyEngine;
    std::byte* const memory = slabs.begin(0);
    says(world[0].all_reduce(memory, memory, 8, DataType::kInt32, ReduceOp::kSum, options),
         "there is no all_reduce by copy-engine");
    says(world[0].all_gather(memory, memory + 4096, 8, DataType::kInt32, options),
         "unless memory has been registered");
    require_registered(world, slabs);
    says(world[0].all_to_all(memory, memory, 8, DataType::kInt32, options), "in place");
    // Config::algorithm holds for what it can do.
    CopyWatch watch(*gpu, slabs, 2);
    const std::vector<Call> calls = {{.collective = Collective::kAllReduce, .count = 1000},
                                     {.collective = Collective::kAllGather, .count = 1000}};
    const auto wanted = on_host(calls, 2);
    AllPlaced found = place_alike(slabs, calls, 2);
    issue_all(world, calls, found);
    world.synchronize();
    check_all(world, calls, found, wanted);
    CHECK(watch.copies == copies_of(calls[1], 2));
    CHECK(world[0].plan(Collective::kAllGather, 1000, DataType::kInt32, true).algorithm ==
          Algorithm::kCopyEngine);
    // A buffer that is not registered ends the communicator, as with every algorithm that is forced.
    Slabs plain(world, *gpu);
    const Status refused =
        world[0].all_gather(plain.begin(0), memory, 8, DataType::kInt32, options);
    CHECK(refused.code() == Code::kUnavailable);
    says(refused, "all_gather(int32, count 8) by copy-engine: rank 0's input (32 bytes at ");
    says(refused, "register it on every rank (register_memory)");
    CHECK(world[1].status().code() == Code::kUnavailable);
  }
  {
    World world(gpu, 2, roomy_config());
    REQUIRE(world.all_created());
    Slabs slabs(world, *gpu);
    require_registered(world, slabs);
    for (size_t count = 1; count <= size_t{1} << 40; count *= 2) {
      for (const Collective collective :
           {Collective::kAllGather, Collective::kBroadcast, Collective::kAllToAll}) {
        CHECK(world[0].plan(collective, count, DataType::kInt32, true).algorithm !=
              Algorithm::kCopyEngine);
      }
    }
  }
  run_on_host(2, [](Communicator& c) {
    int data[2] = {};
    CallOptions options;
    options.algorithm = Algorithm::kCopyEngine;
    const Status refused = c.all_gather(data + c.rank(), data, 1, DataType::kInt32, options);
    testing::expect(refused.code() == Code::kUnavailable &&
                        refused.message().find("Config::device") != std::string::npos,
                    refused.to_string());
  });
}

TEST_CASE("Whichever call of CUDA fails in an operation by copies, a rank learns of it") {
  int calls = 0;
  for (int fail_at = -1; fail_at < calls || fail_at < 0; ++fail_at) {
    const auto gpu = make_gpu();
    {
      const Installed installed(gpu);
      World world(gpu, 2);
      REQUIRE(world.all_created());
      Slabs slabs(world, *gpu);
      require_registered(world, slabs);
      gpu->calls = 0;
      gpu->fail_at = fail_at;
      bool told = false, right = true;
      for (int rank = 0; rank < 2; ++rank) {
        CallOptions options = world.on_stream(rank);
        options.algorithm = Algorithm::kCopyEngine;
        auto* const in = reinterpret_cast<int32_t*>(slabs.begin(rank));
        std::fill_n(in, 100, rank + 1);
        told = !world[rank].all_gather(in, in + 1000, 100, DataType::kInt32, options).ok() || told;
      }
      if (fail_at < 0) calls = gpu->calls;
      gpu->fail_at = -1;
      world.synchronize();
      for (int rank = 0; rank < 2; ++rank) {
        const auto* const out = reinterpret_cast<const int32_t*>(slabs.begin(rank)) + 1000;
        for (int i = 0; i < 200; ++i) right = right && out[i] == i / 100 + 1;
      }
      INFO("call " << fail_at << " of " << calls);
      if (fail_at < 0) CHECK_FALSE(told);
      CHECK((told || right));
      REQUIRE(calls > 20);
    }
    CHECK(gpu->alive() == 0);
  }
}

}  // namespace
}  // namespace rondo::device::test
