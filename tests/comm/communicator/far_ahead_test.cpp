// Ranks that only send run ahead of those that have not come yet: as far as the board remembers
// what they sent, so that a disagreement found late is still told in full. If no rank receives, they
// find it when they end.
#include <mutex>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

constexpr DataType kLong = DataType::kInt64;
constexpr int kMostCalls = 10000;
constexpr int kAhead = 40;  // more than slots or header lines of one FIFO let through

TEST_CASE("whoever is far ahead is told what was different") {
  for (const How how : kHows) {
    for (const int ranks : {2, 3, 5}) {
      SharedCount calls;
      const auto ahead = [&](Communicator& comm) {
        // Through as many FIFOs as there are: each alone holds a rank up early.
        int64_t in = 1, out[8] = {};
        Status status;
        for (int call = 0; status.ok() && call < kMostCalls; ++call, ++*calls) {
          const int turn = call % ranks;
          const CallOptions published{.algorithm = Algorithm::kOneShot};
          status = turn == 0 ? comm.broadcast(&in, out, 1, kLong, 0, published)
                             : comm.gather(&in, out, 1, kLong, turn);
        }
        return status;
      };
      run_ok(how, ranks, [&](Communicator& comm) {
        if (comm.rank() == 0)
          return expect_error(ahead(comm), Code::kMismatch, "barrier", "broadcast");
        await("rank 0 ahead", [&] { return *calls >= kAhead; });
        expect_error(comm.barrier(), Code::kMismatch, "barrier", "broadcast");
      });
    }
  }
}

TEST_CASE("uneven counts are named by who comes many exchanges later") {
  // Of so many ranks the board remembers fewer exchanges than it remembers operations.
  constexpr int kRanks = 24;
  SharedCount calls;
  run_ok(How::kThreads, kRanks, [&](Communicator& comm) {
    std::vector<size_t> sends(kRanks), expects(kRanks);
    if (comm.rank() == 0) sends[1] = 1;
    if (comm.rank() == 1) expects[0] = 2;
    const int64_t in[2] = {};
    int64_t out[2] = {};
    Status status;
    if (comm.rank() == 1) await("rank 0 ahead", [&] { return *calls >= 20; });
    for (int call = 0; status.ok() && call < kMostCalls; ++call) {
      status = comm.all_to_all_v(in, sends, {}, out, expects, {}, kLong);
      if (comm.rank() == 0) ++*calls;
    }
    expect_error(status, Code::kMismatch, "rank 0 sends 1", "rank 1", "expects 2");
  });
}

/// Calls in which a rank only sends, each with a root that the others do not name.
struct OnlySends {
  const char* name;
  std::vector<int> ranks;
  Status (*call)(Communicator&, const int64_t* in, int64_t* out, int next);
};
const OnlySends kOnlySend[] = {
    {"broadcast",
     {2, 3},
     [](Communicator& comm, const int64_t* in, int64_t* out, int) {
       return comm.broadcast(in, out, 1, kLong, comm.rank());
     }},
    {"scatter",
     {2, 3},
     [](Communicator& comm, const int64_t* in, int64_t* out, int) {
       return comm.scatter(in, out, 1, kLong, comm.rank());
     }},
    {"gather",
     {2, 3},
     [](Communicator& comm, const int64_t* in, int64_t* out, int next) {
       return comm.gather(in, out, 1, kLong, next);
     }},
    {"reduce", {2}, [](Communicator& comm, const int64_t* in, int64_t* out, int next) {
       return comm.reduce(in, out, 1, kLong, ReduceOp::kSum, next);
     }}};

TEST_CASE("ranks that only send are told at the end that they disagree") {
  for (const How how : kHows) {
    for (const OnlySends& kind : kOnlySend) {
      for (const int ranks : kind.ranks) {
        SharedCount calls;
        run_ok(how, ranks, [&](Communicator& comm) {
          const int64_t in[4] = {};
          int64_t out[4] = {};
          for (int call = 0; call < 3; ++call)
            expect_ok(comm.broadcast(in, out, 1, kLong, 0), "before");
          expect_ok(comm.finish(), "before");
          expect_ok(kind.call(comm, in, out, (comm.rank() + 1) % ranks), kind.name);
          ++*calls;
          await("the calls of all", [&] { return *calls == ranks; });
          expect_error(comm.finish(), Code::kMismatch, "operation 4: rank",
                       std::string("called ") + kind.name + "(int64", "root");
        });
      }
    }
  }
}

TEST_CASE("a disagreement that no call has reported is logged when a rank leaves") {
  std::mutex mutex;
  std::vector<std::string> errors;
  set_log_callback([&](LogLevel level, std::string_view line) {
    const std::lock_guard lock(mutex);
    if (level == LogLevel::kError) errors.emplace_back(line);
  });
  for (const bool disagree : {false, true}) {
    errors.clear();
    SharedCount calls;
    run_ok(How::kThreads, 2, [&](Communicator& comm) {
      int64_t value = 1;
      expect_ok(comm.broadcast(&value, &value, 1, kLong, disagree ? comm.rank() : 0), "broadcast");
      ++*calls;
      await("the calls of all", [&] { return *calls == 2; });
    });
    REQUIRE(errors.empty() == !disagree);
    for (const char* part : {"leaves the communicator", "root 0", "root 1"}) {
      if (disagree) expect_contains(errors[0], part);
    }
  }
  set_log_callback({});
}

}  // namespace
}  // namespace rondo::testing
