// What happens when something goes wrong, with real processes: a killed rank, one
// that leaves, ranks that disagree, an abort. Every survivor must say the same true thing, in time,
// and nothing may be left behind.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

void expect_soon(Clock::time_point start) {
  expect(seconds_since(start) < kSoonS, "took " + std::to_string(seconds_since(start)) + " s");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Kind {
  Collective collective;
  bool library;
  Algorithm algorithm;
};

// One operation of a kind, large enough to be caught in the middle.
Status one(Communicator& comm, const Kind& kind, void* in, void* out, size_t count) {
  const CallOptions options{.algorithm = kind.algorithm};
  const auto n = static_cast<size_t>(comm.size()), each = count / n;
  // The last rank's block is the largest.
  std::vector<size_t> counts(n, 4), same(n, each);
  counts.back() = count - 4 * n;
  const ReduceOp sum = ReduceOp::kSum;
  switch (kind.collective) {
    case Collective::kAllReduce:
      return comm.all_reduce(in, out, count, kFloat, sum, options);
    case Collective::kReduceScatter:
      return comm.reduce_scatter(in, out, each, kFloat, sum, options);
    case Collective::kAllGather:
      return comm.all_gather(in, out, each, kFloat, options);
    case Collective::kBroadcast:
      return comm.broadcast(in, out, count, kFloat, 0, options);
    case Collective::kReduce:
      return comm.reduce(in, out, count, kFloat, sum, 1, options);
    case Collective::kGather:
      return comm.gather(in, out, each, kFloat, 0, options);
    case Collective::kScatter:
      return comm.scatter(in, out, each, kFloat, 0, options);
    case Collective::kAllToAll:
      return comm.all_to_all(in, out, each, kFloat, options);
    case Collective::kAllGatherV:
      return comm.all_gather_v(in, out, counts, {}, kFloat, options);
    case Collective::kReduceScatterV:
      return comm.reduce_scatter_v(in, out, counts, {}, kFloat, sum, options);
    case Collective::kAllToAllV:
      return comm.all_to_all_v(in, same, {}, out, same, {}, kFloat, options);
    case Collective::kScatterV:
      return comm.scatter_v(in, out, counts, {}, kFloat, 0, options);
    case Collective::kExclusiveScan:
      return comm.exclusive_scan(in, out, count, kFloat, sum, options);
    default:
      return comm.barrier(options);
  }
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

}  // namespace

TEST_CASE("a killed rank is named by every other rank, soon") {
  const std::set<std::string> before = ours_in_dev_shm();
  const Kind kinds[] = {
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
    for (const Kind& kind : kinds) {
      const int victim = (size - 1 + static_cast<int>(&kind - kinds)) % size;
      for (const size_t count : {size_t{64}, size_t{1} << 18}) {
        INFO(size << " ranks, " << name(kind.collective) << " " << name(kind.algorithm) << count);
        WorldGang gang(size, [&](Communicator& comm, Link& link) {
          Buffer in(count * 4, kind.library), out(count * 4, kind.library);
          const auto call = [&] { return one(comm, kind, in.data(), out.data(), count); };
          for (int i = 0; i < 3; ++i) expect_ok(call(), "before");
          expect_eq(used_of_dev_shm(), std::string(), "in /dev/shm");
          link.announce("going");
          Status status;
          Clock::time_point last = Clock::now();
          while (status.ok()) {
            last = Clock::now();
            status = call();
          }
          expect_soon(last);
          expect_error(status, Code::kPeerDied, "rank " + std::to_string(victim) + " ");
          expect_error(comm.barrier(), Code::kPeerDied);  // sticky
        });
        gang.await_all("going");
        gang.kill(victim, SIGKILL);
        gang.require_ok({victim});
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
      WorldGang gang(size, with(&Config::pace, "1GB/s,150ms"), [&](Communicator& comm, Link& link) {
        Buffer in(400, false), out(400, false);
        expect_ok(comm.barrier(), "barrier");
        link.announce("going");
        const Status status = comm.all_reduce(in.data(), out.data(), 100, kFloat, ReduceOp::kSum,
                                              {.algorithm = Algorithm::kRing});
        expect_error(status, Code::kPeerDied, "rank 0 ", "all_reduce(float, sum, count 100)");
        link.announce("failed");
      });
      gang.await_all("going");
      std::this_thread::sleep_for(std::chrono::milliseconds(150 * step + 50));
      gang.kill(0, SIGKILL);
      const double killed = gang.seconds();
      gang.await_each(all_but({0}, size), "failed");
      REQUIRE(gang.seconds() - killed < kSoonS);
      gang.require_ok({0});
    }
  }
}

TEST_CASE("a rank that never calls is named at the deadline") {
  WorldGang gang(3, with(&Config::stall_timeout, 400ms), [](Communicator& comm, Link& link) {
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() != 1) {
      expect_error(comm.barrier(), Code::kTimeout, "rank 1 (pid", "has not called it");
    }
    link.announce("failed");
    link.await("end");
  });
  gang.await_all("failed");
  gang.tell_all("end");
  gang.require_ok();
}

TEST_CASE("ranks that disagree all name both calls, soon") {
  using Call = std::function<Status(Communicator&, float* data)>;
  struct Disagreement {
    Call first, second;
    const char *says_first, *says_second;
  };
  constexpr size_t kMost = 100'000;
  const auto reduce = [](size_t count, DataType type = kFloat, ReduceOp op = ReduceOp::kSum,
                         const CallOptions& options = {}) -> Call {
    return [=](Communicator& c, float* data) {
      return c.all_reduce(data, data + kMost, count, type, op, options);
    };
  };
  const auto broadcast = [](int root) -> Call {
    return [=](Communicator& c, float* data) {
      return c.broadcast(data, data + kMost, 5000, kFloat, root);
    };
  };
  const Call barrier = [](Communicator& c, float*) { return c.barrier(); };
  const auto both = [](const Call& one, const Call& other) -> Call {
    return [=](Communicator& c, float* data) {
      const Status status = one(c, data);
      return status.ok() ? other(c, data) : status;
    };
  };
  const Disagreement all[] = {
      {reduce(100), barrier, "all_reduce(float, sum, count 100)", "barrier"},
      {reduce(100), reduce(90), "count 100", "count 90"},
      {reduce(100000), reduce(90000), "count 100000", "count 90000"},
      {reduce(100), reduce(100, kInt), "float", "int32"},
      {reduce(100), reduce(100, kFloat, ReduceOp::kMax), "sum", "max"},
      {reduce(0), reduce(10), "count 0", "count 10"},
      {broadcast(0), broadcast(1), "root 0", "root 1"},
      {reduce(5000, kFloat, ReduceOp::kSum, {.layout = 0x1342}), reduce(5000),
       "dimensions in the order 0 2 3 1", "in C order"},
      {both(reduce(10), barrier), both(barrier, reduce(10)), "all_reduce", "barrier"},
  };
  for (const Disagreement& d : all) {
    for (const bool library : {false, true}) {
      INFO(d.says_first << " and " << d.says_second);
      run_each(kSanitized ? std::vector<int>{3} : std::vector<int>{2, 3, 5},
               [&](Communicator& comm) {
                 Buffer data(2 * kMost * 4, library);
                 auto* const floats = reinterpret_cast<float*>(data.data());
                 const auto start = Clock::now();
                 Status status = (comm.rank() == 1 ? d.second : d.first)(comm, floats);
                 // A rank that could return before the others came learns at its next call.
                 if (status.ok()) status = comm.barrier();
                 expect_soon(start);
                 expect_error(status, Code::kMismatch, d.says_first, d.says_second, "rank 1");
               });
    }
  }
}

TEST_CASE("a rank that leaves early is named") {
  run_ok(How::kForks, 3, [](Communicator& comm) {
    expect_ok(comm.barrier(), "barrier");
    if (comm.rank() == 2) return;
    expect_error(comm.barrier(), Code::kPeerDied, "rank 2 left the communicator");
  });
}

TEST_CASE("a rank that ends after its part is done fails nobody in that operation") {
  WorldGang gang(3, [&](Communicator& comm, Link& link) {
    const int rank = comm.rank();
    Buffer data(4096, false);
    expect_ok(comm.barrier(), "barrier");
    link.announce("here");
    if (rank == 1) link.await("go on");
    const Status status =
        comm.broadcast(data.data(), data.data(), 1024, kFloat, 0, {.algorithm = Algorithm::kRing});
    if (rank == 0) {
      link.await("end");
      _exit(0);
    }
    expect_ok(status, "broadcast");
    link.announce("done");
    link.await("the next");  // whose news would reach a rank that is still in the broadcast
    expect_error(comm.barrier(), Code::kPeerDied, "rank 0 (pid");  // its exit was no goodbye
  });
  gang.await_all("here");
  const status::MappedBoard board = board_of(gang.pid(0));
  await_look_round(board, 2);  // it is in the broadcast
  gang.tell(0, "end");
  gang.await_end(0);
  await_look_round(board, 2);
  gang.tell(1, "go on");
  gang.await_each({1, 2}, "done");
  gang.tell_each({1, 2}, "the next");
  gang.require_ok({0});
}

TEST_CASE("asynchronous operations report failures too, all of them") {
  WorldGang gang(3, [&](Communicator& comm, Link& link) {
    Buffer data(4 * 1000, false);
    expect_ok(comm.barrier(), "barrier");
    link.announce("going");
    if (comm.rank() == 1) link.await("never");
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i)
      works.push_back(comm.all_reduce_async(data.data(), data.data(), 1000, kFloat));
    for (Work& work : works) expect_error(work.wait(), Code::kPeerDied, "rank 1 ");
  });
  gang.await_all("going");
  gang.kill(1, SIGKILL);
  gang.require_ok({1});
}

TEST_CASE("a rank that left in time does not hide the death of another") {
  WorldGang gang(3, [&](Communicator& comm, Link& link) {
    const int rank = comm.rank();
    expect_ok(comm.barrier(), "barrier");
    link.announce("going");
    if (rank == 2) link.await("never");
    if (rank == 0) link.await("on");
    // A chain from rank 1, which is done at once and leaves, by rank 2 to rank 0.
    Buffer data(4, false);
    const Status status =
        comm.broadcast(data.data(), data.data(), 1, kFloat, 1, {.algorithm = Algorithm::kRing});
    if (rank == 1) return expect_ok(status, "from the root");
    expect_error(status, Code::kPeerDied, "rank 2 (pid");
  });
  gang.await_all("going");
  gang.await_end(1);
  gang.kill(2, SIGKILL);
  gang.await_end(2);
  const double told = gang.seconds();
  gang.tell(0, "on");
  gang.await_end(0);
  REQUIRE(gang.seconds() - told < kSoonS);
  gang.require_ok({2});
}

TEST_CASE("slow is not dead: who waits longer than the deadline for a peer that works goes on") {
  run_ok(How::kForks, 2, [](Communicator& comm) {
    // The root has nothing to do but to wait until the other has pulled everything. Sanitized, that
    // takes longer, and so do the moments in which the other does not run.
    const size_t count = size_t{64} << 20;
    const std::chrono::milliseconds deadline{kSanitized ? 100 : 10};
    Buffer data(count * 4, true);
    for (int turn = 0; turn < 3; ++turn) {
      expect_ok(comm.barrier(), "barrier");
      expect_ok(comm.broadcast(data.data(), data.data(), count, kFloat, 0,
                               {.algorithm = Algorithm::kOneShotDirect, .stall_timeout = deadline}),
                "broadcast");
    }
  });
}

TEST_CASE("a pace that is slower than the deadline is named") {
  Config config = with(&Config::pace, "1GB/s,2s");
  config.stall_timeout = 200ms;
  run_ok(How::kThreads, 2, config, [](Communicator& comm) {
    int32_t in = 1, out = 0;
    expect_error(
        comm.all_reduce(&in, &out, 1, kInt, ReduceOp::kSum, {.algorithm = Algorithm::kRing}),
        Code::kTimeout, "the pace '1GB/s,2s' delays");
  });
}

TEST_CASE("bytes that a pace delays for longer than the deadline are no stall") {
  Config config = with(&Config::pace, "1MB/s,1us");
  config.stall_timeout = 200ms;
  run_ok(How::kForks, 2, config, [](Communicator& comm) {
    const size_t count = 150'000;  // 600 KB: 0.6 s on each rank's wire
    Buffer data(4 * count, true);
    expect_ok(comm.all_reduce(data.data(), data.data(), count, kFloat, ReduceOp::kSum,
                              {.algorithm = Algorithm::kTwoShotDirect}),
              "all_reduce");
  });
}

TEST_CASE("a rank that waits for one whose bytes a pace delays does not stall") {
  Config config = with(&Config::pace, "1MB/s,1us");
  config.stall_timeout = 200ms;
  config.channels = GENERATE(1, 2);
  run_ok(How::kForks, 3, config, [](Communicator& comm) {
    const size_t count = 150'000;  // rank 0 waits 0.6 s for what it reads, and the others for it
    Buffer in(4 * count, true), out(12 * count, true);
    expect_ok(comm.gather(in.data(), out.data(), count, kFloat, 0,
                          {.algorithm = Algorithm::kTwoShotDirect}),
              "gather");
    expect_ok(comm.barrier(), "barrier");
  });
}

TEST_CASE("slow is not dead: neither is who waits while others pass something on now and then") {
  Config config =
      with(&Config::pace, "1GB/s,150ms");  // rank 7 hears of the root after seven times as long
  config.stall_timeout = 300ms;
  run_ok(How::kThreads, 8, config, [](Communicator& comm) {
    Buffer data(64, false);
    expect_ok(
        comm.broadcast(data.data(), data.data(), 2, kFloat, 0, {.algorithm = Algorithm::kRing}),
        "broadcast");
  });
}

}  // namespace rondo::testing
