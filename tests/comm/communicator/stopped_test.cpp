// Ranks that a signal stops: they are named at the deadline. If all of them were stopped, as Ctrl-Z
// does, the time until they continue does not count.
#include <csignal>
#include <thread>

#include "tests/comm/communicator/await.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

TEST_CASE("a stopped rank, not merely a neighbour, is named at the deadline", "[one_host]") {
  struct Case {
    int size;
    Algorithm algorithm;
    bool library = false;
  };
  for (const Case& kind :
       {Case{2, Algorithm::kTwoShot}, Case{3, Algorithm::kRing}, Case{4, Algorithm::kRing},
        Case{4, Algorithm::kTwoShot}, Case{4, Algorithm::kOneShot}, Case{5, Algorithm::kTwoShot},
        Case{7, Algorithm::kRing}, Case{3, Algorithm::kRing, true},
        Case{4, Algorithm::kTwoShot, true}, Case{4, Algorithm::kOneShot, true}}) {
    const int size = kind.size, victim = size / 2;
    const Algorithm algorithm = kind.algorithm;
    const TempDirectory directory;
    INFO(size << " ranks, " << name(algorithm) << (kind.library ? ", library memory" : ""));
    ForkGang gang(size, [&](int rank, Link& link) {
      Config config;
      config.timeout = std::chrono::milliseconds{700};
      auto comm = Communicator::create(world_config(directory.path(), rank, size, config));
      expect(comm.ok(), comm.status().to_string());
      const size_t count = 1 << 16;
      Buffer in(count * 4, kind.library), out(count * 4, kind.library);
      link.announce("going");
      Status status;
      Clock::time_point last = Clock::now();
      while (status.ok()) {
        last = Clock::now();
        status = comm->all_reduce(in.data(), out.data(), count, DataType::kFloat32, ReduceOp::kSum,
                                  {.algorithm = algorithm});
      }
      if (rank == victim) return;
      expect(status.code() == Code::kTimeout, status.to_string());
      expect(seconds_since(last) > 0.6, "before the deadline");
      expect_contains(status.message(), ": rank " + std::to_string(victim) + " (pid");
      expect_contains(status.message(), "stopped");
      expect_contains(status.message(), "all_reduce(float, sum, count 65536)");
    });
    for (int rank = 0; rank < size; ++rank) gang.await(rank, "going");
    gang.kill(victim, SIGSTOP);
    // The survivors end by themselves; only then may the stopped one go on, and finds the error.
    for (int rank = 0; rank < size; ++rank) {
      if (rank != victim) gang.await_end(rank);
    }
    gang.kill(victim, SIGCONT);
    require_all_ok(gang.join());
  }
}

TEST_CASE("a rank that is stopped in one communicator is named in the others that it holds up",
          "[one_host]") {
  const TempDirectory directory;
  ForkGang gang(4, [&](int rank, Link& link) {
    Config config;
    config.timeout = std::chrono::milliseconds{600};
    auto world = Communicator::create(world_config(directory.path(), rank, 4, config));
    expect(world.ok(), world.status().to_string());
    auto part = world->split(rank / 2, 0);
    expect(part.ok(), part.status().to_string());
    expect_ok(world->barrier(), "barrier");
    if (rank == 1) link.announce("here");  // it is stopped there
    link.await("go");
    CallOptions patient;
    patient.timeout = std::chrono::seconds{60};
    if (rank < 2) return expect_ok((*part)->barrier(patient), "barrier of the part");
    const Status status = world->barrier();
    expect(status.code() == Code::kTimeout, status.to_string());
    expect_contains(status.message(), "rank 1 (pid");
    expect_contains(status.message(), "stopped by a signal");
  });
  gang.await(1, "here");
  gang.kill(1, SIGSTOP);
  for (int rank : {0, 2, 3}) gang.tell(rank, "go");
  for (int rank : {2, 3}) gang.await_end(rank);
  gang.tell(1, "go");
  gang.kill(1, SIGCONT);
  require_all_ok(gang.join());
}

TEST_CASE("time during which all ranks are stopped does not count") {
  const TempDirectory directory;
  const double timeout_s = 2;
  ForkGang gang(2, [&](int rank, Link& link) {
    setenv("RONDO_HOST_TIMEOUT", "2", 1);  // the ranks may be on two hosts
    Config config;
    config.timeout = std::chrono::milliseconds(static_cast<int>(1000 * timeout_s));
    auto comm = Communicator::create(world_config(directory.path(), rank, 2, config));
    expect(comm.ok(), comm.status().to_string());
    expect_ok(comm->barrier(), "barrier");
    link.announce("here");
    if (rank == 1) link.await("go");
    expect_ok(comm->barrier(), "barrier of ranks that were stopped");
  });
  for (int rank : {0, 1}) gang.await(rank, "here");
  await_look_round(board_of(gang.pid(0)), 0);  // it waits for rank 1
  for (int rank : {0, 1}) gang.kill(rank, SIGSTOP);
  const Clock::time_point stopped = Clock::now();
  await("the deadline passes", [&] { return seconds_since(stopped) > timeout_s + 0.5; });
  for (int rank : {0, 1}) gang.kill(rank, SIGCONT);
  gang.tell(1, "go");
  require_all_ok(gang.join());
}

}  // namespace
}  // namespace rondo::testing
