// Processes that stop, and hosts that go: nobody's end is seen, so time decides. Every rank that lives
// names who stands still, or the host that does not answer.
#include <signal.h>

#include <cstdlib>
#include <numeric>

#include "comm/bootstrap/host.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"
#include "tests/harness/bad_network.hpp"

namespace rondo::testing {
namespace {

const Placement kThreeHosts{0, 1, 1, 2};

HostsGang start(const Hosts& hosts, const Placement& placement, const Operation& operation,
                const Config& config) {
  HostsGang gang(
      hosts, placement,
      [&](Communicator& comm, Link& link) {
        Buffers buffers(1200, false);
        const Status status = call_until_failure(comm, link, operation, buffers);
        expect(comm.barrier().code() == status.code(), "not sticky");
        return status;
      },
      config);
  gang.await_all("going");
  return gang;
}

std::vector<int> ranks_on(const Placement& placement, int host, bool there) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(placement.size()); ++rank) {
    if ((placement[static_cast<size_t>(rank)] == host) == there) ranks.push_back(rank);
  }
  return ranks;
}

/// Of a forked rank, in the meeting of a part.
void stop_itself(int /*rank*/, comm::RankHost& /*here*/) { raise(SIGSTOP); }

}  // namespace

TEST_CASE("a rank stopped in a split is named, and not the one that waits there for it") {
  const Hosts hosts(2);
  Config config;
  config.timeout = std::chrono::seconds{1};
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
  show_time("rank 2 of 4 stopped in a split, deadline 1 s",
            gang.check(now_ns(), {.survivors = {0, 1, 3},
                                  .codes = {Code::kTimeout},
                                  .says = {": rank 2 (pid"},
                                  .within_s = 4}));
}

TEST_CASE("a stopped rank of any host is named at the deadline by every rank") {
  const Hosts hosts(2);
  Config config;
  config.timeout = std::chrono::seconds{2};
  for (const int victim : {0, 1, 2, 3}) {
    // With such a rank its host's agent stands still, which alone can tell the others why.
    const bool has_agent = ranks_on(kFour, kFour[static_cast<size_t>(victim)], true)[0] == victim;
    double longest = 0;
    for (const size_t index : {0, 1}) {
      const Operation& operation = operations()[index];
      INFO(operation.names[0] << ", rank " << victim << " stopped");
      HostsGang gang = start(hosts, kFour, operation, config);
      const int64_t stopped_ns = now_ns();
      gang.ranks().kill(victim, SIGSTOP);
      std::vector<int> survivors = {0, 1, 2, 3};
      std::erase(survivors, victim);
      const double took = gang.check(
          stopped_ns,
          {.survivors = survivors,
           .codes = {Code::kTimeout},
           .says = {"rank " + std::to_string(victim) + " (pid " +
                    std::to_string(gang.ranks().pid(victim))},
           .one_of = has_agent ? std::vector<std::string>{"stands still", "stopped by a signal",
                                                          "has not called it"}
                               : std::vector<std::string>{"stopped by a signal"},
           .called = operation.names,
           .within_s = 3});
      CHECK(took > 1.9);
      longest = std::max(longest, took);
    }
    show_time("rank " + std::to_string(victim) + " of 4 on 2 hosts stopped, deadline 2 s", longest);
  }
}

TEST_CASE("a host that is cut off or frozen is named by every host that lives") {
  setenv("RONDO_HOST_TIMEOUT", "2", 1);
  const Hosts hosts(3);
  for (const int gone : {0, 1}) {
    for (const bool cut : {true, false}) {
      INFO("host " << gone << (cut ? " cut off" : " frozen"));
      HostsGang gang = start(hosts, kThreeHosts, operations()[0], {});
      const int64_t gone_ns = now_ns();
      if (cut) {
        hosts.cut(gone);
      } else {
        hosts.freeze(gone);
      }
      const std::vector<int> lost = ranks_on(kThreeHosts, gone, true);
      const double took = gang.check(
          gone_ns, {.survivors = ranks_on(kThreeHosts, gone, false),
                    .codes = {Code::kPeerDied},
                    .says = {"host " + Hosts::name(gone) + " with rank" +
                             (lost.size() > 1 ? "s 1 and 2" : " " + std::to_string(lost[0]))},
                    .ends_too = cut ? lost : std::vector<int>(),
                    .within_s = 3});
      if (cut) hosts.mend(gone);
      show_time("host " + std::to_string(gone) + " of 3 " + (cut ? "cut off" : "frozen") +
                    ", RONDO_HOST_TIMEOUT=2",
                took);
    }
  }
  unsetenv("RONDO_HOST_TIMEOUT");
}

// Hosts that hear others and are not heard: neither end is told by its network.
TEST_CASE("a network that carries in one direction only is an error on both sides") {
  setenv("RONDO_HOST_TIMEOUT", "2", 1);
  const Hosts hosts(3);
  for (const bool sends : {true, false}) {
    INFO("host 1 " << (sends ? "is not heard" : "hears nothing"));
    BadNetwork network(hosts, 1);
    HostsGang gang = start(hosts, kThreeHosts, operations()[0], {});
    const int64_t gone_ns = now_ns();
    for (const int other : {0, 2}) {
      network.set(sends ? 1 : other, sends ? other : 1, Wire::none());
    }
    const double took = gang.check(gone_ns, {.survivors = {0, 3},
                                             .codes = {Code::kPeerDied},
                                             .says = {"host h1 with ranks 1 and 2"},
                                             .ends_too = {1, 2},
                                             .within_s = 3});
    show_time(std::string("host 1 of 3 ") + (sends ? "is not heard" : "hears nothing") +
                  ", RONDO_HOST_TIMEOUT=2",
              took);
  }
  unsetenv("RONDO_HOST_TIMEOUT");
}

TEST_CASE("a host that was frozen for too long learns why it is out") {
  setenv("RONDO_HOST_TIMEOUT", "1", 1);
  const Hosts hosts(2);
  HostsGang gang = start(hosts, kFour, operations()[0], {});
  hosts.freeze(1);
  for (const int rank : {0, 1}) gang.ranks().await_end(rank);
  const int64_t thawed_ns = now_ns();
  hosts.thaw(1);
  for (const int rank : {2, 3}) gang.ranks().await_end(rank);
  show_time("host thawed, its ranks' own error",
            gang.check(thawed_ns,
                       {.survivors = {0, 1, 2, 3}, .codes = {Code::kPeerDied}, .within_s = 1}));
  unsetenv("RONDO_HOST_TIMEOUT");
}

TEST_CASE("slow and lossy networks, and worse ones, give right results") {
  using std::chrono::microseconds;
  struct Network {
    const char* what;
    Wire wire;
  };
  const Network networks[] = {
      {"as it is", {}},
      {"20 ms later", {.delay = microseconds{20'000}}},
      {"in another order, 0 to 2 ms later", {.jitter = microseconds{2'000}}},
      {"1 of 100 frames lost", {.lost = 0.01}},
      {"1 of 10 frames twice", {.doubled = 0.1}},
      {"4 MB/s", {.bytes_per_s = 4e6}},
      {"all of it",
       {.delay = microseconds{1'000},
        .jitter = microseconds{1'000},
        .lost = 0.005,
        .doubled = 0.05,
        .bytes_per_s = 2e7}},
  };
  const Hosts hosts(2);
  for (const auto& [what, wire] : networks) {
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
    show_time(std::string("every call on a network: ") + what,
              static_cast<double>(now_ns() - start_ns) * 1e-9);
    const BadNetwork::Counts counts = network.counts();
    CHECK(counts.passed > 1000);
    CHECK((wire.lost == 0 || counts.lost > 0));
    CHECK((wire.doubled == 0 || counts.doubled > 0));
    CHECK((wire.jitter.count() == 0 || counts.overtaken > 0));
  }
}

}  // namespace rondo::testing
