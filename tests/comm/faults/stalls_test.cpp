// Processes that stop, and hosts that go: nobody's end is seen, so time decides. Every rank that lives
// names who stands still, or the host that does not answer.
#include <signal.h>

#include <cstdlib>
#include <numeric>

#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"

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

}  // namespace

TEST_CASE("a stopped rank of any host is named at the deadline by every rank") {
  const Hosts hosts(2);
  Config config;
  config.timeout = std::chrono::seconds{2};
  for (const int victim : {0, 1, 2, 3}) {
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
          stopped_ns, {.survivors = survivors,
                       .codes = {Code::kTimeout},
                       .says = {"rank " + std::to_string(victim) + " (pid " +
                                    std::to_string(gang.ranks().pid(victim)),
                                operation.names[0]},
                       .one_of = {"stands still", "stopped by a signal", "has not called it"},
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

TEST_CASE("slow and lossy networks give right results, where the kernel has netem") {
  const Hosts hosts(2);
  const std::vector<std::vector<std::string>> networks = {
      {"delay", "20ms", "5ms"}, {"loss", "1%"}, {"rate", "100mbit"}};
  for (const std::vector<std::string>& network : networks) {
    if (!hosts.netem(0, network) || !hosts.netem(1, network)) {
      std::printf("this kernel has no netem (sch_netem): slow and lossy networks are not tested\n");
      return;
    }
    HostsGang gang(hosts, kFour, [](Communicator& comm, Link&) {
      Buffers buffers(12'000, false);
      for (const Operation& operation : operations()) {
        for (int turn = 0; turn < 3; ++turn) RONDO_TRY(operation.call(comm, buffers, turn));
      }
      return Status();
    });
    require_all_ok(gang.ranks().join());
    for (int rank = 0; rank < gang.size(); ++rank) {
      INFO(network[0] << ", rank " << rank << ": " << gang.outcome(rank).text);
      CHECK(gang.outcome(rank).code == Code::kOk);
    }
  }
}

}  // namespace rondo::testing
