// Ranks of several hosts that call different things, leave or abort: every rank says what is wrong, in
// time.
#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {
namespace {

using Call = std::function<Status(Communicator&)>;

/// Four ranks that have met; each then does its call.
HostsGang met(const Hosts& hosts, const Call& call) {
  return HostsGang(hosts, kFour, [&](Communicator& comm, Link& link) {
    expect_ok(comm.barrier(), "barrier");
    link.announce("met");
    link.await("go");
    return call(comm);
  });
}

Call all_reduce(size_t count, DataType type, ReduceOp op) {
  return [=](Communicator& comm) {
    Buffers b(count, false);
    return comm.all_reduce(b.input(), b.output(), count, type, op);
  };
}

Call broadcast(int root) {
  return [=](Communicator& comm) {
    Buffers b(500, false);
    return comm.broadcast(b.input(), b.output(), 500, DataType::kInt64, root);
  };
}

}  // namespace

TEST_CASE("ranks of several hosts that disagree all name both calls") {
  const Hosts hosts(2);
  const Call usual = all_reduce(100, DataType::kInt64, ReduceOp::kSum);
  struct Disagreement {
    Call most, odd;
    std::vector<std::string> says;
  };
  const std::vector<Disagreement> all = {
      {usual, all_reduce(90, DataType::kInt64, ReduceOp::kSum), {"count 100", "count 90"}},
      {all_reduce(40'000, DataType::kInt64, ReduceOp::kSum),
       all_reduce(30'000, DataType::kInt64, ReduceOp::kSum),
       {"count 40000", "count 30000"}},
      {usual, all_reduce(100, DataType::kFloat64, ReduceOp::kSum), {"int64", "double"}},
      {usual, all_reduce(100, DataType::kInt64, ReduceOp::kMax), {"sum", "max"}},
      {broadcast(0), broadcast(2), {"root 0", "root 2"}},
      {usual, [](Communicator& comm) { return comm.barrier(); }, {"all_reduce", "barrier"}},
  };
  for (const auto& [most, odd, says] : all) {
    for (const int who : {1, 3}) {
      const std::string row = "rank " + std::to_string(who) + " calls with " + says[1];
      INFO(row);
      HostsGang gang = met(hosts, [&, &mine = most, &other = odd](Communicator& comm) {
        const Status status = comm.rank() == who ? other(comm) : mine(comm);
        // A rank that could return before the others came learns at its next call.
        return status.ok() ? comm.barrier() : status;
      });
      std::vector<std::string> parts = says;
      parts.push_back("rank " + std::to_string(who));
      gang.check(gang.begin(), {.row = row,
                                .survivors = kAllFour,
                                .codes = {Code::kMismatch},
                                .says = parts,
                                .within_s = 1,
                                .same_text = true});
    }
  }
}

TEST_CASE("a rank that leaves while others of several hosts need it is named") {
  const Hosts hosts(2);
  for (const int leaver : kAllFour) {
    for (const bool messages : {false, true}) {
      const std::string rank = "rank " + std::to_string(leaver);
      INFO(rank << " leaves" << (messages ? ", messages" : ""));
      HostsGang gang = met(hosts, [&](Communicator& comm) {
        if (comm.rank() == leaver) return Status();
        int64_t value = 0;
        return messages ? comm.recv(&value, 1, DataType::kInt64, leaver) : comm.barrier();
      });
      gang.check(gang.begin(), {.row = rank + " leaves early",
                                .survivors = all_but(leaver),
                                .codes = {Code::kPeerDied},
                                .says = {rank + " left the communicator"},
                                // What it sent before it left may take two seconds.
                                .within_s = messages ? 3.0 : 1.0});
    }
  }
}

TEST_CASE("an abort on one host is what every rank of every host returns") {
  const Hosts hosts(2);
  for (const int aborter : kAllFour) {
    const std::string rank = "rank " + std::to_string(aborter);
    HostsGang gang = met(hosts, [&](Communicator& comm) {
      if (comm.rank() == aborter) comm.abort("enough");
      return comm.barrier();
    });
    gang.check(gang.begin(), {.row = rank + " aborts",
                              .survivors = kAllFour,
                              .codes = {Code::kAborted},
                              .says = {rank + " aborted: enough"},
                              .within_s = 1,
                              .same_text = true});
  }
}

}  // namespace rondo::testing
