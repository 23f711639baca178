// Ranks that a signal stops: they are named at the deadline. If all of them were stopped, as Ctrl-Z
// does, the time until they continue does not count.
#include <csignal>

#include "tests/comm/communicator/worlds.hpp"

namespace rondo::testing {
namespace {

TEST_CASE("a stopped rank, not merely a neighbour, is named at the deadline", "[one_host]") {
  const auto two = Algorithm::kTwoShot, ring = Algorithm::kRing, one = Algorithm::kOneShot;
  for (const auto& [size, algorithm, library] : {std::tuple{2, two, false},
                                                 {3, ring, false},
                                                 {4, ring, false},
                                                 {4, two, false},
                                                 {4, one, false},
                                                 {5, two, false},
                                                 {7, ring, false},
                                                 {3, ring, true},
                                                 {4, two, true},
                                                 {4, one, true}}) {
    const int victim = size / 2;
    INFO(size << " ranks, " << name(algorithm) << (library ? ", library memory" : ""));
    const Config config = with(&Config::stall_timeout, 700ms);
    const CallOptions options{.algorithm = algorithm};
    WorldGang gang(size, config, [&, library = library](Communicator& comm, Link& link) {
      const size_t count = 1 << 16;
      Buffer in(count * 4, library), out(count * 4, library);
      link.announce("going");
      Status status;
      Clock::time_point last = Clock::now();
      while (status.ok()) {
        last = Clock::now();
        status = comm.all_reduce(in.data(), out.data(), count, kFloat, ReduceOp::kSum, options);
      }
      if (comm.rank() == victim) return;
      expect(seconds_since(last) > 0.6, "before the deadline");
      expect_error(status, Code::kTimeout, ": rank " + std::to_string(victim) + " (pid", "stopped",
                   "all_reduce(float, sum, count 65536)");
    });
    gang.await_all("going");
    gang.kill(victim, SIGSTOP);
    // The survivors end by themselves; only then may the stopped one go on, and finds the error.
    gang.await_ends(all_but({victim}, size));
    gang.kill(victim, SIGCONT);
    gang.require_ok();
  }
}

TEST_CASE("a rank that is stopped in one communicator is named in the others that it holds up",
          "[one_host]") {
  WorldGang gang(4, with(&Config::stall_timeout, 600ms), [](Communicator& world, Link& link) {
    const int rank = world.rank();
    Communicator part = part_of(world, rank / 2);
    expect_ok(world.barrier(), "barrier");
    if (rank == 1) link.announce("here");  // it is stopped there
    link.await("go");
    const CallOptions patient{.stall_timeout = 60s};
    if (rank < 2) return expect_ok(part.barrier(patient), "barrier of the part");
    expect_error(world.barrier(), Code::kTimeout, "rank 1 (pid", "stopped by a signal");
  });
  gang.await(1, "here");
  gang.kill(1, SIGSTOP);
  gang.tell_each({0, 2, 3}, "go");
  gang.await_ends({2, 3});
  gang.tell(1, "go");
  gang.kill(1, SIGCONT);
  gang.require_ok();
}

TEST_CASE("time during which all ranks are stopped does not count") {
  setenv("RONDO_HOST_TIMEOUT", "2", 1);  // the ranks may be on two hosts
  const std::chrono::milliseconds timeout = 2000ms;
  WorldGang gang(2, with(&Config::stall_timeout, timeout), [](Communicator& comm, Link& link) {
    expect_ok(comm.barrier(), "barrier");
    link.announce("here");
    if (comm.rank() == 1) link.await("go");
    expect_ok(comm.barrier(), "barrier of ranks that were stopped");
  });
  unsetenv("RONDO_HOST_TIMEOUT");
  gang.await_all("here");
  await_look_round(board_of(gang.pid(0)), 0);  // it waits for rank 1
  for (int rank : {0, 1}) gang.kill(rank, SIGSTOP);
  const Clock::time_point stopped = Clock::now();
  await("the deadline passes", [&] { return Clock::now() - stopped > timeout * 5 / 4; });
  for (int rank : {0, 1}) gang.kill(rank, SIGCONT);
  gang.tell(1, "go");
  gang.require_ok();
}

}  // namespace
}  // namespace rondo::testing
