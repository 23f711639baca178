// Ranks that are killed while all work, on hosts of their own: every survivor names the dead rank, its
// host and the operation, in time.
#include <signal.h>

#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {

TEST_CASE("a killed rank is named by every rank of every host") {
  const Hosts hosts(3);
  const std::pair<Placement, int> deaths[] = {
      {{0, 0, 1, 1}, 0}, {{0, 0, 1, 1}, 1}, {{0, 0, 1, 1}, 2},
      {{0, 0, 1, 1}, 3}, {{0, 1, 2}, 0},    {{0, 1, 2}, 2},
  };
  size_t turn = 0;
  for (const auto& [placement, victim] : deaths) {
    for (const Operation& operation : operations()) {
      const size_t count = turn % 3 == 0 ? 12 : turn % 3 == 1 ? 1200 : 120'000;
      const bool library = ++turn % 2 == 0;
      HostsGang gang = start(hosts, placement, operation, {}, count, library);
      const std::string rank = "rank " + std::to_string(victim) + " ";
      const std::string row = rank + "of " + std::to_string(gang.size()) + " killed in " +
                              operation.names[0] + " of " + std::to_string(count) +
                              (library ? ", library memory" : "");
      INFO(row);
      gang.check(gang.signal(victim, SIGKILL),
                 {.row = row,
                  .survivors = all_but(victim, gang.size()),
                  .codes = {Code::kPeerDied},
                  .says = {rank, "on host " + Hosts::name(gang.host_of(victim))},
                  .one_of = operation.names,
                  .within_s = 1});
    }
  }
}

// Without an agent, whose part of the operation is done, nothing would tell that others have failed.
TEST_CASE("who waits for another host does not wait on when its own host's agent is killed") {
  const Hosts hosts(2);
  for (const int agent : {0, 2}) {
    const int root = agent + 1, late = 2 - agent;
    const std::string rank = "rank " + std::to_string(agent) + " ";
    INFO("rank " << root << " waits for rank " << late << ", " << rank << "is killed");
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
    gang.check(gang.signal(agent, SIGKILL),
               {.row = rank + "killed, whose host's other rank waits",
                .survivors = {root},
                .codes = {Code::kPeerDied},
                .says = {rank, "on host " + Hosts::name(gang.host_of(agent)), "gather"},
                .within_s = 1});
  }
}

}  // namespace rondo::testing
