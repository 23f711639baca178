// Ranks that only send run ahead of those that have not come yet: as far as the board remembers
// what they sent, so that a disagreement found late is still told in full.
#include <sys/mman.h>

#include <atomic>
#include <memory>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

// How far rank 0 has come, for processes too.
class SharedCount {
 public:
  SharedCount()
      : count_(static_cast<std::atomic<int>*>(mmap(nullptr, sizeof(std::atomic<int>),
                                                   PROT_READ | PROT_WRITE,
                                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedCount() { munmap(count_, sizeof(std::atomic<int>)); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  std::atomic<int>& operator*() { return *count_; }

 private:
  std::atomic<int>* count_;
};

void expect_says(const Status& status, const std::vector<std::string>& parts) {
  expect(status.code() == Code::kMismatch, status.to_string());
  for (const std::string& part : parts) {
    expect(status.message().find(part) != std::string::npos,
           "'" + status.message() + "' does not say '" + part + "'");
  }
}

constexpr int kMostCalls = 10000;
constexpr int kAhead = 40;  // more than slots or header lines of one FIFO let through

TEST_CASE("whoever is far ahead is told what was different") {
  for (const How how : kHows) {
    for (const int ranks : {2, 3, 5}) {
      INFO(how_name(how) << ", " << ranks << " ranks");
      SharedCount calls;
      const auto ahead = [&](Communicator& comm) {
        // Through as many FIFOs as there are: each alone holds a rank up early.
        int64_t in = 1, out[8] = {};
        Status status;
        for (int call = 0; status.ok() && call < kMostCalls; ++call, ++*calls) {
          const int turn = call % ranks;
          const CallOptions published{.algorithm = Algorithm::kOneShot};
          status = turn == 0 ? comm.broadcast(&in, out, 1, DataType::kInt64, 0, published)
                             : comm.gather(&in, out, 1, DataType::kInt64, turn);
        }
        return status;
      };
      require_all_ok(run_world(how, ranks, [&](Communicator& comm) {
        if (comm.rank() == 0) return expect_says(ahead(comm), {"barrier", "broadcast"});
        await("rank 0 ahead", [&] { return *calls >= kAhead; });
        expect_says(comm.barrier(), {"barrier", "broadcast"});
      }));
    }
  }
}

TEST_CASE("uneven counts are named by who comes many exchanges later") {
  // Of so many ranks the board remembers fewer exchanges than it remembers operations.
  constexpr int kRanks = 24;
  SharedCount calls;
  require_all_ok(run_world(How::kThreads, kRanks, [&](Communicator& comm) {
    std::vector<size_t> sends(kRanks), expects(kRanks);
    if (comm.rank() == 0) sends[1] = 1;
    if (comm.rank() == 1) expects[0] = 2;
    const int64_t in[2] = {};
    int64_t out[2] = {};
    Status status;
    if (comm.rank() == 1) await("rank 0 ahead", [&] { return *calls >= 20; });
    for (int call = 0; status.ok() && call < kMostCalls; ++call) {
      status = comm.all_to_all_v(in, sends, {}, out, expects, {}, DataType::kInt64);
      if (comm.rank() == 0) ++*calls;
    }
    expect_says(status, {"rank 0 sends 1", "rank 1", "expects 2"});
  }));
}

}  // namespace
}  // namespace rondo::testing
