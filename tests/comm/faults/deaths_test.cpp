// Ranks that are killed while all work, on hosts of their own: every survivor names the dead rank, its
// host and the operation, in time.
#include <signal.h>

#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {
namespace {

std::vector<int> all_but(int size, int victim) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (rank != victim) ranks.push_back(rank);
  }
  return ranks;
}

struct Death {
  Placement placement;
  int victim;
};

double die_in(const Hosts& hosts, const Death& death, const Operation& operation, bool library,
              size_t count) {
  HostsGang gang(hosts, death.placement, [&](Communicator& comm, Link& link) {
    Buffers buffers(count, library);
    const Status status = call_until_failure(comm, link, operation, buffers);
    expect(comm.barrier().code() == status.code(), "not sticky");
    return status;
  });
  const int victim = death.victim, host = gang.host_of(victim);
  INFO(operation.names[0] << " of " << count << (library ? ", library memory" : "") << ", rank "
                          << victim << " of " << gang.size() << " killed");
  gang.await_all("going");
  const int64_t killed_ns = now_ns();
  gang.ranks().kill(victim, SIGKILL);
  return gang.check(
      killed_ns, {.survivors = all_but(gang.size(), victim),
                  .codes = {Code::kPeerDied},
                  .says = {"rank " + std::to_string(victim) + " ", "on host " + Hosts::name(host)},
                  .one_of = operation.names,
                  .within_s = 1});
}

}  // namespace

TEST_CASE("a killed rank is named by every rank of every host") {
  const Hosts hosts(3);
  const std::vector<Death> deaths = {
      {{0, 0, 1, 1}, 0}, {{0, 0, 1, 1}, 1}, {{0, 0, 1, 1}, 2},
      {{0, 0, 1, 1}, 3}, {{0, 1, 2}, 0},    {{0, 1, 2}, 2},
  };
  size_t turn = 0;
  for (const Death& death : deaths) {
    double longest = 0;
    for (const Operation& operation : operations()) {
      const size_t count = turn % 3 == 0 ? 12 : turn % 3 == 1 ? 1200 : 120'000;
      longest = std::max(longest, die_in(hosts, death, operation, turn % 2 == 1, count));
      ++turn;
    }
    show_time("rank " + std::to_string(death.victim) + " of " +
                  std::to_string(death.placement.size()) + " on " +
                  std::to_string(death.placement.back() + 1) + " hosts killed",
              longest);
  }
}

// Without an agent, whose part of the operation is done, nothing would tell that others have failed.
TEST_CASE("who waits for another host does not wait on when its own host's agent is killed") {
  const Hosts hosts(2);
  for (const int agent : {0, 2}) {
    const int root = agent + 1, late = 2 - agent;
    INFO("rank " << root << " waits for rank " << late << ", rank " << agent << " is killed");
    HostsGang gang(hosts, kFour, [&](Communicator& comm, Link& link) {
      RONDO_TRY(comm.barrier());
      if (comm.rank() == late) link.await("the end");
      const float in = 1;
      float out[4] = {};
      if (comm.rank() == root) link.announce("waits");
      const Status status = comm.gather(&in, out, 1, DataType::kFloat32, root);
      if (comm.rank() == agent) link.announce("done");
      if (comm.rank() != root) link.await("the end");
      return status;
    });
    gang.ranks().await(root, "waits");
    gang.ranks().await(agent, "done");
    const int64_t killed_ns = now_ns();
    gang.ranks().kill(agent, SIGKILL);
    const double took =
        gang.check(killed_ns, {.survivors = {root},
                               .codes = {Code::kPeerDied},
                               .says = {"rank " + std::to_string(agent) + " ",
                                        "on host " + Hosts::name(gang.host_of(agent)), "gather"},
                               .within_s = 1});
    show_time("rank " + std::to_string(agent) + " killed, whose host's other rank waits", took);
  }
}

}  // namespace rondo::testing
