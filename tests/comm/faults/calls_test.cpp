// Ranks of several hosts that call different things, leave or abort: every rank says what is wrong, in
// time.
#include <signal.h>

#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {
namespace {

const std::vector<int> kAll{0, 1, 2, 3};

using Call = std::function<Status(Communicator&, Buffers&)>;

struct Disagreement {
  const char* what;
  Call most, odd;
  std::vector<std::string> says;
};

Call all_reduce(size_t count, DataType type, ReduceOp op) {
  return [=](Communicator& comm, Buffers& b) {
    return comm.all_reduce(b.input(), b.output(), count, type, op);
  };
}

Call broadcast(int root) {
  return [=](Communicator& comm, Buffers& b) {
    return comm.broadcast(b.input(), b.output(), 500, DataType::kInt64, root);
  };
}

}  // namespace

TEST_CASE("ranks of several hosts that disagree all name both calls") {
  const Hosts hosts(2);
  const Call usual = all_reduce(100, DataType::kInt64, ReduceOp::kSum);
  const std::vector<Disagreement> all = {
      {"count", usual, all_reduce(90, DataType::kInt64, ReduceOp::kSum), {"count 100", "count 90"}},
      {"large count",
       all_reduce(40'000, DataType::kInt64, ReduceOp::kSum),
       all_reduce(30'000, DataType::kInt64, ReduceOp::kSum),
       {"count 40000", "count 30000"}},
      {"type", usual, all_reduce(100, DataType::kFloat64, ReduceOp::kSum), {"int64", "double"}},
      {"operator", usual, all_reduce(100, DataType::kInt64, ReduceOp::kMax), {"sum", "max"}},
      {"root", broadcast(0), broadcast(2), {"root 0", "root 2"}},
      {"collective",
       usual,
       [](Communicator& comm, Buffers&) { return comm.barrier(); },
       {"all_reduce", "barrier"}},
  };
  double longest = 0;
  for (const Disagreement& disagreement : all) {
    for (const int odd : {1, 3}) {
      INFO(disagreement.what << ", rank " << odd << " calls another one");
      HostsGang gang(hosts, kFour, [&](Communicator& comm, Link& link) {
        Buffers buffers(40'000, false);
        expect_ok(comm.barrier(), "barrier");
        link.announce("met");
        link.await("go");
        Status status = (comm.rank() == odd ? disagreement.odd : disagreement.most)(comm, buffers);
        // A rank that could return before the others came learns at its next call.
        if (status.ok()) status = comm.barrier();
        return status;
      });
      gang.await_all("met");
      const int64_t told_ns = now_ns();
      for (const int rank : kAll) gang.ranks().tell(rank, "go");
      std::vector<std::string> says = disagreement.says;
      says.push_back("rank " + std::to_string(odd));
      longest = std::max(longest, gang.check(told_ns, {.survivors = kAll,
                                                       .codes = {Code::kMismatch},
                                                       .says = says,
                                                       .within_s = 1,
                                                       .same_text = true}));
    }
  }
  show_time("disagreements", longest);
}

TEST_CASE("a rank that leaves while others of several hosts need it is named") {
  const Hosts hosts(2);
  double longest = 0;
  for (const int leaver : kAll) {
    for (const bool messages : {false, true}) {
      INFO("rank " << leaver << " leaves" << (messages ? ", messages" : ""));
      HostsGang gang(hosts, kFour, [&](Communicator& comm, Link& link) {
        Buffers buffers(400, false);
        expect_ok(comm.barrier(), "barrier");
        link.announce("met");
        link.await("go");
        if (comm.rank() == leaver) return Status();
        if (!messages) return comm.barrier();
        return comm.recv(buffers.output(), 1, DataType::kInt64, leaver);
      });
      gang.await_all("met");
      const int64_t told_ns = now_ns();
      for (const int rank : kAll) gang.ranks().tell(rank, "go");
      std::vector<int> survivors = kAll;
      std::erase(survivors, leaver);
      const double took = gang.check(
          told_ns, {.survivors = survivors,
                    .codes = {Code::kPeerDied},
                    .says = {"rank " + std::to_string(leaver) + " left the communicator"},
                    // What it sent before it left may take two seconds.
                    .within_s = messages ? 3.0 : 1.0});
      if (!messages) longest = std::max(longest, took);
    }
  }
  show_time("a rank leaves early", longest);
}

TEST_CASE("an abort on one host is what every rank of every host returns") {
  const Hosts hosts(2);
  double longest = 0;
  for (const int aborter : kAll) {
    INFO("rank " << aborter << " aborts");
    HostsGang gang(hosts, kFour, [&](Communicator& comm, Link& link) {
      expect_ok(comm.barrier(), "barrier");
      link.announce("met");
      link.await("go");
      if (comm.rank() == aborter) comm.abort("enough");
      return comm.barrier();
    });
    gang.await_all("met");
    const int64_t told_ns = now_ns();
    for (const int rank : kAll) gang.ranks().tell(rank, "go");
    const std::string says = "rank " + std::to_string(aborter) + " aborted: enough";
    longest = std::max(longest, gang.check(told_ns, {.survivors = kAll,
                                                     .codes = {Code::kAborted},
                                                     .says = {says},
                                                     .within_s = 1,
                                                     .same_text = true}));
  }
  show_time("abort", longest);
}

}  // namespace rondo::testing
