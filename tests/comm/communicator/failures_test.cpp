// What happens when something goes wrong, with real processes: a killed rank, one
// that leaves, ranks that disagree, an abort. Every survivor must say the same true thing, in time,
// and nothing may be left behind.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

// An idle machine takes milliseconds. Every deadline is later.
constexpr double kSoonS = 6;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Collectives {
  Collective collective;
  bool library;
  Algorithm algorithm;
};

// One operation of a kind, large enough to be caught in the middle.
Status one(Communicator& comm, const Collectives& kind, Buffer& in, Buffer& out, size_t count) {
  const CallOptions options{.algorithm = kind.algorithm};
  // The last rank's block is the largest.
  std::vector<size_t> counts(static_cast<size_t>(comm.size()), 4);
  counts.back() = count - 4 * counts.size();
  std::vector<size_t> exchanged(counts.size(), count / counts.size());
  switch (kind.collective) {
    case Collective::kAllReduce:
      return comm.all_reduce(in.data(), out.data(), count, DataType::kFloat32, ReduceOp::kSum,
                             options);
    case Collective::kReduceScatter:
      return comm.reduce_scatter(in.data(), out.data(), count / static_cast<size_t>(comm.size()),
                                 DataType::kFloat32, ReduceOp::kSum, options);
    case Collective::kAllGather:
      return comm.all_gather(in.data(), out.data(), count / static_cast<size_t>(comm.size()),
                             DataType::kFloat32, options);
    case Collective::kBroadcast:
      return comm.broadcast(in.data(), out.data(), count, DataType::kFloat32, 0, options);
    case Collective::kReduce:
      return comm.reduce(in.data(), out.data(), count, DataType::kFloat32, 1, ReduceOp::kSum,
                         options);
    case Collective::kGather:
      return comm.gather(in.data(), out.data(), count / static_cast<size_t>(comm.size()),
                         DataType::kFloat32, 0, options);
    case Collective::kScatter:
      return comm.scatter(in.data(), out.data(), count / static_cast<size_t>(comm.size()),
                          DataType::kFloat32, 0, options);
    case Collective::kAllToAll:
      return comm.all_to_all(in.data(), out.data(), count / static_cast<size_t>(comm.size()),
                             DataType::kFloat32, options);
    case Collective::kAllGatherV:
      return comm.all_gather_v(in.data(), out.data(), counts, {}, DataType::kFloat32, options);
    case Collective::kReduceScatterV:
      return comm.reduce_scatter_v(in.data(), out.data(), counts, {}, DataType::kFloat32,
                                   ReduceOp::kSum, options);
    case Collective::kAllToAllV:
      return comm.all_to_all_v(in.data(), exchanged, {}, out.data(), exchanged, {},
                               DataType::kFloat32, options);
    case Collective::kGatherV:
      return comm.gather_v(in.data(), out.data(), counts, {}, DataType::kFloat32, 0, options);
    case Collective::kScatterV:
      return comm.scatter_v(in.data(), out.data(), counts, {}, DataType::kFloat32, 0, options);
    case Collective::kInclusiveScan:
      return comm.inclusive_scan(in.data(), out.data(), count, DataType::kFloat32, ReduceOp::kSum,
                                 options);
    case Collective::kExclusiveScan:
      return comm.exclusive_scan(in.data(), out.data(), count, DataType::kFloat32, ReduceOp::kSum,
                                 options);
    case Collective::kBarrier:
      return comm.barrier(options);
  }
  return {};
}

/// What of /dev/shm this process has open or mapped. Other programs' files are none of this test's
/// business.
std::string used_of_dev_shm() {
  std::string used;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (contains(line, "/dev/shm/")) used += line + "\n";
  }
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (contains(target, "/dev/shm/")) used += target + "\n";
  }
  return used;
}

/// Files there that bear rondo's name, which it gives to all memory that ranks share.
std::set<std::string> ours_in_dev_shm() {
  std::set<std::string> ours;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (contains(entry.path().filename(), "rondo")) ours.insert(entry.path());
  }
  return ours;
}

std::vector<RankResult> without(std::vector<RankResult> results, int rank) {
  results.erase(results.begin() + rank);
  return results;
}

}  // namespace

TEST_CASE("a killed rank is named by every other rank, soon") {
  const std::set<std::string> before = ours_in_dev_shm();
  const Collectives kinds[] = {
      {Collective::kAllReduce, false, Algorithm::kRing},
      {Collective::kAllReduce, false, Algorithm::kTwoShot},
      {Collective::kAllReduce, false, Algorithm::kOneShot},
      {Collective::kAllReduce, true, Algorithm::kTwoShotDirect},
      {Collective::kReduceScatter, false, Algorithm::kRing},
      {Collective::kAllGather, true, Algorithm::kAuto},
      {Collective::kBroadcast, false, Algorithm::kAuto},
      {Collective::kBarrier, false, Algorithm::kAuto},
      {Collective::kAllReduce, false, Algorithm::kTree},
      {Collective::kReduce, true, Algorithm::kAuto},
      {Collective::kGather, false, Algorithm::kAuto},
      {Collective::kScatter, true, Algorithm::kAuto},
      {Collective::kAllToAll, true, Algorithm::kAuto},
      {Collective::kAllGatherV, true, Algorithm::kAuto},
      {Collective::kReduceScatterV, false, Algorithm::kAuto},
      {Collective::kAllToAllV, true, Algorithm::kAuto},
      {Collective::kScatterV, true, Algorithm::kAuto},
      {Collective::kExclusiveScan, true, Algorithm::kAuto},
  };
  for (const int size : sizes({2, 3, 4, 5, 7})) {
    for (const Collectives& kind : kinds) {
      const int victim = (size - 1 + static_cast<int>(&kind - kinds)) % size;
      for (const size_t count : {size_t{64}, size_t{1} << 18}) {
        INFO(size << " ranks, " << name(kind.collective) << " " << name(kind.algorithm) << " count "
                  << count);
        const TempDirectory directory;
        ForkGang gang(size, [&](int rank, Link& link) {
          auto comm = Communicator::create(world_config(directory.path(), rank, size));
          expect(comm.ok(), comm.status().to_string());
          Buffer in(count * 4, kind.library), out(count * 4, kind.library);
          for (int i = 0; i < 3; ++i) expect_ok(one(*comm, kind, in, out, count), "before");
          expect_eq(used_of_dev_shm(), std::string(), "in /dev/shm");
          link.announce("going");
          Status status;
          Clock::time_point last = Clock::now();
          while (status.ok()) {
            last = Clock::now();
            status = one(*comm, kind, in, out, count);
          }
          expect(seconds_since(last) < kSoonS,
                 "took " + std::to_string(seconds_since(last)) + " s");
          expect(status.code() == Code::kPeerDied, status.to_string());
          expect_contains(status.message(), "rank " + std::to_string(victim) + " ");
          // Sticky.
          expect(comm->barrier().code() == Code::kPeerDied, "not sticky");
        });
        for (int rank = 0; rank < size; ++rank) gang.await(rank, "going");
        gang.kill(victim, SIGKILL);
        require_all_ok(without(gang.join(), victim));
      }
    }
  }
  for (const std::string& file : ours_in_dev_shm()) CHECK(before.contains(file));
}

// Messages of 150 ms put every step of a ring where a test can reach it, also where the machine is
// busy with other things for a moment.
TEST_CASE("a rank killed in any step of a ring is named by every other rank") {
  for (const int size : {2, 3}) {
    for (int step = 0; step < 2 * (size - 1); ++step) {
      INFO(size << " ranks, killed in step " << step);
      const TempDirectory directory;
      ForkGang gang(size, [&](int rank, Link& link) {
        Config config;
        config.pace = "1GB/s,150ms";
        auto comm = Communicator::create(world_config(directory.path(), rank, size, config));
        expect(comm.ok(), comm.status().to_string());
        Buffer in(400, false), out(400, false);
        expect_ok(comm->barrier(), "barrier");
        link.announce("going");
        const Status status = comm->all_reduce(in.data(), out.data(), 100, DataType::kFloat32,
                                               ReduceOp::kSum, {.algorithm = Algorithm::kRing});
        expect(status.code() == Code::kPeerDied, status.to_string());
        expect_contains(status.message(), "rank 0 ");
        expect_contains(status.message(), "all_reduce(float, sum, count 100)");
        link.announce("failed");
      });
      for (int rank = 0; rank < size; ++rank) gang.await(rank, "going");
      std::this_thread::sleep_for(std::chrono::milliseconds(150 * step + 50));
      gang.kill(0, SIGKILL);
      const double killed = gang.seconds();
      for (int rank = 1; rank < size; ++rank) gang.await(rank, "failed");
      REQUIRE(gang.seconds() - killed < kSoonS);
      require_all_ok(without(gang.join(), 0));
    }
  }
}

TEST_CASE("a rank that never calls is named at the deadline") {
  const TempDirectory directory;
  ForkGang gang(3, [&](int rank, Link& link) {
    Config config;
    config.timeout = std::chrono::milliseconds{400};
    auto comm = Communicator::create(world_config(directory.path(), rank, 3, config));
    expect(comm.ok(), comm.status().to_string());
    expect_ok(comm->barrier(), "barrier");
    if (rank == 1) {
      link.announce("here");
      link.await("end");
      return;
    }
    const Status status = comm->barrier();
    expect(status.code() == Code::kTimeout, status.to_string());
    expect_contains(status.message(), "rank 1 (pid");
    expect_contains(status.message(), "has not called it");
    link.announce("failed");
    link.await("end");
  });
  gang.await(1, "here");
  for (const int rank : {0, 2}) gang.await(rank, "failed");
  for (const int rank : {0, 1, 2}) gang.tell(rank, "end");
  require_all_ok(gang.join());
}

TEST_CASE("ranks that disagree all name both calls, soon") {
  struct Disagreement {
    const char* what;
    std::function<Status(Communicator&, unsigned char*, unsigned char*)> first, second;
    const char *says_first, *says_second;
  };
  const auto reduce = [](size_t count, DataType type, ReduceOp op) {
    return [=](Communicator& c, unsigned char* in, unsigned char* out) {
      return c.all_reduce(in, out, count, type, op);
    };
  };
  const Disagreement all[] = {
      {"collective", reduce(100, DataType::kFloat32, ReduceOp::kSum),
       [](Communicator& c, unsigned char*, unsigned char*) { return c.barrier(); },
       "all_reduce(float, sum, count 100)", "barrier"},
      {"count", reduce(100, DataType::kFloat32, ReduceOp::kSum),
       reduce(90, DataType::kFloat32, ReduceOp::kSum), "count 100", "count 90"},
      {"large count", reduce(100000, DataType::kFloat32, ReduceOp::kSum),
       reduce(90000, DataType::kFloat32, ReduceOp::kSum), "count 100000", "count 90000"},
      {"type", reduce(100, DataType::kFloat32, ReduceOp::kSum),
       reduce(100, DataType::kInt32, ReduceOp::kSum), "float", "int32"},
      {"operator", reduce(100, DataType::kFloat32, ReduceOp::kSum),
       reduce(100, DataType::kFloat32, ReduceOp::kMax), "sum", "max"},
      {"zero count", reduce(0, DataType::kFloat32, ReduceOp::kSum),
       reduce(10, DataType::kFloat32, ReduceOp::kSum), "count 0", "count 10"},
      {"root",
       [](Communicator& c, unsigned char* in, unsigned char* out) {
         return c.broadcast(in, out, 5000, DataType::kFloat32, 0);
       },
       [](Communicator& c, unsigned char* in, unsigned char* out) {
         return c.broadcast(in, out, 5000, DataType::kFloat32, 1);
       },
       "root 0", "root 1"},
      {"layout",
       [](Communicator& c, unsigned char* in, unsigned char* out) {
         return c.all_reduce(in, out, 5000, DataType::kFloat32, ReduceOp::kSum, {.layout = 0x1342});
       },
       [](Communicator& c, unsigned char* in, unsigned char* out) {
         return c.all_reduce(in, out, 5000, DataType::kFloat32);
       },
       "dimensions in the order 0 2 3 1", "in C order"},
      {"order",
       [](Communicator& c, unsigned char* in, unsigned char* out) {
         const Status status = c.all_reduce(in, out, 10, DataType::kFloat32);
         return status.ok() ? c.barrier() : status;
       },
       [](Communicator& c, unsigned char* in, unsigned char* out) {
         const Status status = c.barrier();
         return status.ok() ? c.all_reduce(in, out, 10, DataType::kFloat32) : status;
       },
       "all_reduce", "barrier"},
  };
  const auto disagree = [](Communicator& comm, const Disagreement& d, bool library) {
    Buffer in(400000, library), out(400000, library);
    const auto start = Clock::now();
    Status status = (comm.rank() == 1 ? d.second : d.first)(comm, in.data(), out.data());
    // A rank that could return before the others came learns at its next call.
    if (status.ok()) status = comm.barrier();
    expect(seconds_since(start) < kSoonS, "took " + std::to_string(seconds_since(start)) + " s");
    expect(status.code() == Code::kMismatch, status.to_string());
    expect_contains(status.message(), d.says_first);
    expect_contains(status.message(), d.says_second);
    expect_contains(status.message(), "rank 1");
  };
  for (const How how : {How::kThreads, How::kForks}) {
    for (const int size : kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 5}) {
      for (const Disagreement& d : all) {
        for (const bool library : {false, true}) {
          INFO(d.what << ", " << how_name(how) << ", " << size << " ranks");
          require_all_ok(
              run_world(how, size, [&](Communicator& comm) { disagree(comm, d, library); }));
        }
      }
    }
  }
}

TEST_CASE("a rank that leaves early is named, one that leaves in time is not") {
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() == 2) return;
    const Status status = comm.barrier();
    expect(status.code() == Code::kPeerDied, status.to_string());
    expect_contains(status.message(), "rank 2 left the communicator");
  }));
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    Buffer data(4096, false);
    for (int i = 0; i < 50; ++i)
      expect_ok(comm.broadcast(data.data(), data.data(), 1024, DataType::kFloat32, i % 3),
                "broadcast");
  }));
}

TEST_CASE("a rank that ends after its part is done fails nobody in that operation") {
  const TempDirectory directory;
  ForkGang gang(3, [&](int rank, Link& link) {
    auto comm = Communicator::create(world_config(directory.path(), rank, 3));
    expect(comm.ok(), comm.status().to_string());
    Buffer data(4096, false);
    expect_ok(comm->barrier(), "barrier");
    link.announce("here");
    if (rank == 1) link.await("go on");
    const Status status = comm->broadcast(data.data(), data.data(), 1024, DataType::kFloat32, 0,
                                          {.algorithm = Algorithm::kRing});
    if (rank == 0) {
      link.await("end");
      _exit(0);
    }
    expect_ok(status, "broadcast");
    link.announce("done");
    link.await("the next");  // whose news would reach a rank that is still in the broadcast
    expect(comm->barrier().code() == Code::kPeerDied, "the next operation names it");
  });
  for (const int rank : {0, 1, 2}) gang.await(rank, "here");
  const status::MappedBoard board = board_of(gang.pid(0));
  await_look_round(board, 2);  // it is in the broadcast
  gang.tell(0, "end");
  gang.await_end(0);
  await_look_round(board, 2);
  gang.tell(1, "go on");
  for (const int rank : {1, 2}) gang.await(rank, "done");
  for (const int rank : {1, 2}) gang.tell(rank, "the next");
  require_all_ok(without(gang.join(), 0));
}

TEST_CASE("an exit without goodbye is a death") {
  const TempDirectory directory;
  ForkGang gang(2, [&](int rank, Link&) {
    auto comm = Communicator::create(world_config(directory.path(), rank, 2));
    expect(comm.ok(), comm.status().to_string());
    expect_ok(comm->barrier(), "barrier");
    if (rank == 1) _exit(0);
    const Status status = comm->barrier();
    expect(status.code() == Code::kPeerDied, status.to_string());
    expect_contains(status.message(), "rank 1 (pid");
  });
  auto results = gang.join();
  results.pop_back();
  require_all_ok(results);
}

TEST_CASE("abort from another thread ends a waiting call on every rank") {
  require_all_ok(run_world(How::kForks, 3, [](Communicator& comm) {
    if (comm.rank() == 0) {
      // Rank 0 never comes to the second barrier; its other thread aborts instead.
      expect_ok(comm.barrier(), "barrier");
      std::thread([&] { comm.abort("enough of element 42"); }).join();
    } else {
      expect_ok(comm.barrier(), "barrier");
    }
    const Status status = comm.barrier();
    expect(status.code() == Code::kAborted, status.to_string());
    expect_contains(status.message(), "rank 0 aborted: enough of element 42");
    expect(comm.status().code() == Code::kAborted, "status()");
  }));
}

TEST_CASE("asynchronous operations report failures too, all of them") {
  const TempDirectory directory;
  ForkGang gang(3, [&](int rank, Link& link) {
    auto comm = Communicator::create(world_config(directory.path(), rank, 3));
    expect(comm.ok(), comm.status().to_string());
    Buffer data(4 * 1000, false);
    expect_ok(comm->barrier(), "barrier");
    link.announce("going");
    if (rank == 1) link.await("never");
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i)
      works.push_back(comm->all_reduce_async(data.data(), data.data(), 1000, DataType::kFloat32));
    for (Work& work : works) {
      const Status status = work.wait();
      expect(status.code() == Code::kPeerDied, status.to_string());
      expect_contains(status.message(), "rank 1 ");
    }
  });
  for (int rank = 0; rank < 3; ++rank) gang.await(rank, "going");
  gang.kill(1, SIGKILL);
  auto results = gang.join();
  results.erase(results.begin() + 1);
  require_all_ok(results);
}

TEST_CASE("the flight record shows what every rank did last") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    Buffer data(4 * 77, false);
    expect_ok(comm.all_reduce(data.data(), data.data(), 77, DataType::kFloat32, ReduceOp::kMax),
              "all_reduce");
    expect_ok(comm.barrier(), "barrier");
    const std::string record = comm.flight_record();
    for (const char* part :
         {"rank 0 (pid", "rank 1 (pid", "#1 all_reduce(float, max, count 77)", "#2 barrier"}) {
      expect_contains(record, part);
    }
    expect_ok(comm.barrier(), "barrier");
  }));
}

TEST_CASE("a rank that left in time does not hide the death of another") {
  const TempDirectory directory;
  ForkGang gang(3, [&](int rank, Link& link) {
    auto comm = Communicator::create(world_config(directory.path(), rank, 3));
    expect(comm.ok(), comm.status().to_string());
    expect_ok(comm->barrier(), "barrier");
    link.announce("going");
    if (rank == 2) link.await("never");
    if (rank == 0) link.await("on");
    // A chain from rank 1, which is done at once and leaves, by rank 2 to rank 0.
    Buffer data(4, false);
    const Status status = comm->broadcast(data.data(), data.data(), 1, DataType::kFloat32, 1,
                                          {.algorithm = Algorithm::kRing});
    if (rank == 1) return expect_ok(status, "from the root");
    expect(status.code() == Code::kPeerDied, status.to_string());
    expect_contains(status.message(), "rank 2 (pid");
  });
  for (int rank = 0; rank < 3; ++rank) gang.await(rank, "going");
  gang.await_end(1);
  gang.kill(2, SIGKILL);
  gang.await_end(2);
  const double told = gang.seconds();
  gang.tell(0, "on");
  gang.await_end(0);
  REQUIRE(gang.seconds() - told < kSoonS);
  require_all_ok(without(gang.join(), 2));
}

TEST_CASE("slow is not dead: who waits longer than the deadline for a peer that works goes on") {
  require_all_ok(run_world(How::kForks, 2, [](Communicator& comm) {
    // The root has nothing to do but to wait until the other has pulled everything. Sanitized, that
    // takes longer, and so do the moments in which the other does not run.
    const size_t count = size_t{64} << 20;
    const std::chrono::milliseconds deadline{kSanitized ? 100 : 10};
    Buffer data(count * 4, true);
    for (int turn = 0; turn < 3; ++turn) {
      expect_ok(comm.barrier(), "barrier");
      expect_ok(comm.broadcast(data.data(), data.data(), count, DataType::kFloat32, 0,
                               {.algorithm = Algorithm::kOneShotDirect, .timeout = deadline}),
                "broadcast");
    }
  }));
}

TEST_CASE("a pace that is slower than the deadline is named") {
  Config config;
  config.pace = "1GB/s,2s";
  config.timeout = std::chrono::milliseconds{200};
  require_all_ok(run_world(
      How::kThreads, 2,
      [](Communicator& comm) {
        int32_t in = 1, out = 0;
        const Status status = comm.all_reduce(&in, &out, 1, DataType::kInt32);
        expect(status.code() == Code::kTimeout, status.to_string());
        expect_contains(status.message(), "the pace '1GB/s,2s' delays");
      },
      config));
}

TEST_CASE("slow is not dead: neither is who waits while others pass something on now and then") {
  Config config;
  config.pace = "1GB/s,150ms";  // rank 7 hears of the root after seven times as long
  config.timeout = std::chrono::milliseconds{300};
  require_all_ok(run_world(
      How::kThreads, 8,
      [](Communicator& comm) {
        Buffer data(64, false);
        expect_ok(comm.broadcast(data.data(), data.data(), 2, DataType::kFloat32, 0,
                                 {.algorithm = Algorithm::kRing}),
                  "broadcast");
      },
      config));
}

}  // namespace rondo::testing
