// Ends without faults, on several hosts: whoever leaves first, nobody waits for long, and nothing is
// left. And splits over hosts, with and without a death.
#include <signal.h>

#include <optional>

#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/leftovers.hpp"
#include "tests/comm/faults/operations.hpp"

namespace rondo::testing {
namespace {

size_t mapped_regions() {
  std::ifstream maps("/proc/self/maps");
  size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

double seconds(int64_t from_ns, int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) * 1e-9;
}

}  // namespace

TEST_CASE("ranks of several hosts leave in any order, and none waits for long") {
  const Hosts hosts(2);
  double longest = 0;
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    HostsGang gang = HostsGang::raw(hosts, kFour, [&](const Config& own, Link& link, Outcome&) {
      auto comm = Communicator::create(own);
      expect(comm.ok(), comm.status().to_string());
      Buffers buffers(1200, false);
      for (int turn = 0; turn < 3; ++turn) {
        RONDO_TRY(operations()[0].call(*comm, buffers, turn));
      }
      link.announce("ready");
      link.await("leave");
      const int64_t began_ns = now_ns();
      { const Communicator gone = std::move(*comm); }
      const double took = seconds(began_ns, now_ns());
      expect(took < 2.5 + kBusyS, "leaving took " + std::to_string(took) + " s");
      return Status();
    });
    gang.await_all("ready");
    for (const int rank : order) {
      const int64_t told_ns = now_ns();
      gang.ranks().tell(rank, "leave");
      gang.ranks().await_end(rank);
      longest = std::max(longest, seconds(told_ns, gang.outcome(rank).gone_ns));
    }
    require_all_fine(gang);
  }
  show_time("leaving one after the other", longest);
}

TEST_CASE("communicators over hosts that come and go leave nothing") {
  const Hosts hosts(2);
  HostsGang gang = HostsGang::raw(hosts, kFour, [](const Config& own, Link&, Outcome&) {
    std::optional<Leftovers> leftovers;
    size_t maps = 0;
    for (int turn = 0; turn < 50; ++turn) {
      Config config = own;
      config.name = "turn-" + std::to_string(turn);
      auto comm = Communicator::create(config);
      expect(comm.ok(), comm.status().to_string());
      Buffers buffers(400, false);
      RONDO_TRY(operations()[0].call(*comm, buffers, turn));
      { const Communicator gone = std::move(*comm); }
      if (turn == 4) {
        leftovers.emplace();
        maps = mapped_regions();
      }
    }
    leftovers->check();
    expect(mapped_regions() < maps + 40,
           std::to_string(mapped_regions()) + " mapped regions, first " + std::to_string(maps));
    return Status();
  });
  const int64_t start_ns = now_ns();
  require_all_fine(gang);
  show_time("50 communicators, each", seconds(start_ns, now_ns()) / 50);
  for (const int host : {0, 1}) CHECK(hosts.processes(host).empty());
}

TEST_CASE("parts of a communicator over hosts: on one, over both, of parts") {
  const Hosts hosts(2);
  HostsGang gang(hosts, kFour, [](Communicator& comm, Link&) {
    const int rank = comm.rank();
    Buffers buffers(240, false);
    const auto works = [&](Communicator& part, int size) {
      expect_eq(part.size(), size, "ranks of the part");
      for (int turn = 0; turn < 2; ++turn) {
        for (const Operation& operation : operations()) {
          expect_ok(operation.call(part, buffers, turn), operation.names[0]);
        }
      }
    };
    auto near = comm.split(rank / 2, 0);  // each on one host
    auto far = comm.split(rank % 2, 0);   // each over both
    auto back = comm.split(0, -rank);     // rank 0 is on the other host
    expect(near.ok() && far.ok() && back.ok(),
           near.status().to_string() + far.status().to_string() + back.status().to_string());
    works(**near, 2);
    works(**far, 2);
    works(**back, 4);
    auto again = (*back)->split(rank % 2, 0);  // a part of a part
    expect(again.ok(), again.status().to_string());
    works(**again, 2);
    works(comm, 4);
    return Status();
  });
  require_all_fine(gang);
}

TEST_CASE("a rank killed during splits over hosts is named by all") {
  const Hosts hosts(2);
  for (const int victim : kAllFour) {
    for (const bool whole : {false, true}) {
      const std::string rank = "rank " + std::to_string(victim) + " ";
      const std::string row = rank + "killed during " + (whole ? "duplicates" : "splits");
      INFO(row);
      HostsGang gang(hosts, kFour, [&](Communicator& comm, Link& link) {
        Status status;
        for (int turn = 0; status.ok(); ++turn) {
          if (turn == 1) link.announce("going");
          status = whole ? comm.duplicate().status() : comm.split(comm.rank() % 2, 0).status();
        }
        return status;
      });
      gang.await_all("going");
      gang.check(gang.signal(victim, SIGKILL), {.row = row,
                                                .survivors = all_but(victim),
                                                .codes = {Code::kPeerDied},
                                                .says = {rank},
                                                .within_s = 3});
    }
  }
}

}  // namespace rondo::testing
