// Processes that stop, and hosts that go: nobody's end is seen, so time decides. Every rank that lives
// names who stands still, or the host that does not answer.
#include <signal.h>

#include <cstdlib>
#include <numeric>

#include "comm/bootstrap/identity/host.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"
#include "tests/harness/bad_network.hpp"

namespace rondo::testing {
namespace {

const Placement kThreeHosts{0, 1, 1, 2};

std::vector<int> ranks_on(const Placement& placement, int host, bool there) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(placement.size()); ++rank) {
    if ((placement[static_cast<size_t>(rank)] == host) == there) ranks.push_back(rank);
  }
  return ranks;
}

/// Of a forked rank, in the meeting of a part.
void stop_itself(int /*rank*/, comm::RankHost& /*here*/) { raise(SIGSTOP); }

/// For the ranks that are started while it lives.
struct HostTimeout {
  explicit HostTimeout(const char* seconds) { setenv("RONDO_HOST_TIMEOUT", seconds, 1); }
  ~HostTimeout() { unsetenv("RONDO_HOST_TIMEOUT"); }
};

}  // namespace

TEST_CASE("a rank stopped in a split is named, and not the one that waits there for it") {
  const Hosts hosts(2);
  Config config;
  config.stall_timeout = std::chrono::seconds{1};
  HostsGang gang(
      hosts, {0, 1, 0, 1},
      [](Communicator& comm, Link& link) {
        expect_ok(comm.barrier(), "barrier");
        if (comm.rank() == 2) comm::pretend_host = &stop_itself;
        link.announce("met");
        auto part = comm.split(comm.rank() % 2, 0);
        return part.ok() ? comm.barrier() : part.status();
      },
      config);
  gang.await_all("met");
  gang.check(now_ns(), {.row = "rank 2 of 4 stopped in a split, deadline 1 s",
                        .survivors = all_but(2),
                        .codes = {Code::kTimeout},
                        .says = {": rank 2 (pid"},
                        .within_s = 4});
}

TEST_CASE("a stopped rank of any host is named at the deadline by every rank") {
  const Hosts hosts(2);
  Config config;
  config.stall_timeout = std::chrono::seconds{2};
  for (const int victim : kAllFour) {
    // With such a rank its host's agent stands still, which alone can tell the others why.
    const bool has_agent = ranks_on(kFour, kFour[static_cast<size_t>(victim)], true)[0] == victim;
    std::vector<std::string> reasons{"stopped by a signal"};
    if (has_agent) reasons.insert(reasons.end(), {"stands still", "has not called it"});
    for (const size_t index : {0, 1}) {
      const Operation& operation = operations()[index];
      const std::string rank = "rank " + std::to_string(victim);
      INFO(operation.names[0] << ", " << rank << " stopped");
      HostsGang gang = start(hosts, kFour, operation, config);
      const double took =
          gang.check(gang.signal(victim, SIGSTOP),
                     {.row = rank + " of 4 on 2 hosts stopped, deadline 2 s",
                      .survivors = all_but(victim),
                      .codes = {Code::kTimeout},
                      .says = {rank + " (pid " + std::to_string(gang.ranks().pid(victim))},
                      .one_of = reasons,
                      .called = operation.names,
                      .within_s = 3});
      CHECK(took > 1.9);
    }
  }
}

TEST_CASE("a host that is cut off or frozen is named by every host that lives") {
  const HostTimeout timeout("2");
  const Hosts hosts(3);
  for (const int gone : {0, 1}) {
    for (const bool cut : {true, false}) {
      const std::string row = "host " + std::to_string(gone) + (cut ? " cut off" : " frozen");
      INFO(row);
      HostsGang gang = start(hosts, kThreeHosts, operations()[0]);
      const int64_t gone_ns = now_ns();
      cut ? hosts.cut(gone) : hosts.freeze(gone);
      const std::vector<int> lost = ranks_on(kThreeHosts, gone, true);
      gang.check(gone_ns, {.row = row + ", RONDO_HOST_TIMEOUT=2",
                           .survivors = ranks_on(kThreeHosts, gone, false),
                           .codes = {Code::kPeerDied},
                           .says = {"host " + Hosts::name(gone) + " with rank" +
                                    (gone == 1 ? "s 1 and 2" : " 0")},
                           .ends_too = cut ? lost : std::vector<int>(),
                           .within_s = 3});
      if (cut) hosts.mend(gone);
    }
  }
}

// Hosts that hear others and are not heard: neither end is told by its network.
TEST_CASE("a network that carries in one direction only is an error on both sides") {
  const HostTimeout timeout("2");
  const Hosts hosts(3);
  for (const bool sends : {true, false}) {
    const std::string row = std::string("host 1 ") + (sends ? "is not heard" : "hears nothing");
    INFO(row);
    BadNetwork network(hosts, 1);
    HostsGang gang = start(hosts, kThreeHosts, operations()[0]);
    const int64_t gone_ns = now_ns();
    for (const int other : {0, 2}) {
      network.set(sends ? 1 : other, sends ? other : 1, Wire::none());
    }
    gang.check(gone_ns, {.row = row + ", RONDO_HOST_TIMEOUT=2",
                         .survivors = {0, 3},
                         .codes = {Code::kPeerDied},
                         .says = {"host h1 with ranks 1 and 2"},
                         .ends_too = {1, 2},
                         .within_s = 3});
  }
}

TEST_CASE("a host that was frozen for too long learns why it is out") {
  const HostTimeout timeout("1");
  const Hosts hosts(2);
  HostsGang gang = start(hosts, kFour, operations()[0]);
  hosts.freeze(1);
  for (const int rank : {0, 1}) gang.ranks().await_end(rank);
  const int64_t thawed_ns = now_ns();
  hosts.thaw(1);
  gang.check(thawed_ns, {.row = "host thawed, its ranks' own error",
                         .survivors = kAllFour,
                         .codes = {Code::kPeerDied},
                         .within_s = 1});
}

TEST_CASE("slow and lossy networks, and worse ones, give right results") {
  using std::chrono::microseconds;
  struct Network {
    const char* what;
    Wire wire;
    double least_s = 0;  // what the calls take if the network does as it should
  };
  const Network networks[] = {
      {"as it is", {}},
      {"20 ms later", {.delay = microseconds{20'000}}, 1.5},
      {"in another order, 0 to 2 ms later", {.jitter = microseconds{2'000}}},
      {"1 of 100 frames lost", {.lost = 0.01}},
      {"1 of 10 frames twice", {.doubled = 0.1}},
      {"4 MB/s", {.bytes_per_s = 4e6}, 1.5},
      {"all of it",
       {.delay = microseconds{1'000},
        .jitter = microseconds{1'000},
        .lost = 0.005,
        .doubled = 0.05,
        .bytes_per_s = 2e7}},
  };
  const Hosts hosts(2);
  for (const auto& [what, wire, least_s] : networks) {
    INFO(what);
    BadNetwork network(hosts, 1);
    network.set_all(wire);
    const int64_t start_ns = now_ns();
    HostsGang gang(
        hosts, kFour,
        [](Communicator& comm, Link&) {
          calls::everything(comm, {.count = 3});
          calls::everything(comm, {.count = 20'000, .type = DataType::kInt64});
          Buffers buffers(12'000, false);
          for (const Operation& operation : operations()) {
            for (int turn = 0; turn < 2; ++turn) RONDO_TRY(operation.call(comm, buffers, turn));
          }
          return Status();
        },
        {}, std::chrono::seconds{60});
    require_all_fine(gang);
    const double took = static_cast<double>(now_ns() - start_ns) * 1e-9;
    show_time(std::string("every call on a network: ") + what, took);
    CHECK(took > least_s);
    const BadNetwork::Counts counts = network.counts();
    CHECK(counts.passed > 1000);
    CHECK((wire.lost == 0 || counts.lost > 0));
    CHECK((wire.doubled == 0 || counts.doubled > 0));
    CHECK((wire.jitter.count() == 0 || counts.overtaken > 0));
  }
}

}  // namespace rondo::testing
