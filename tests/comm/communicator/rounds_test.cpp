// How often ranks wait for each other while they set a communicator up.
#include "tests/comm/communicator/rounds.hpp"

#include <cstdlib>
#include <string>
#include <utility>

#include "comm/bootstrap/identity/host.hpp"
#include "tests/comm/communicator/world.hpp"

namespace rondo::testing {
namespace {

/// As rank 0 counts them, of a communicator of three ranks that meet at `place`.
void expect_rounds(const std::string& place, int rounds) {
  require_all_ok(run_ranks(How::kForks, 3, [&](int rank) {
    const Rounds counted;
    Config config = world_config("", rank, 3);
    config.rendezvous = place;
    (void)created(config);
    expect_eq(counted.most(), rank == 0 ? rounds : 0, "rounds");
  }));
}

TEST_CASE("ranks of one host are set up in four rounds", "[any_links]") {
  const TempDirectory directory;
  expect_rounds(directory.path(), 4);
  expect_rounds(loopback_place(directory.path()), 6);  // they find out that they share it
}

TEST_CASE("ranks of several hosts are set up in six rounds", "[any_links]") {
  const auto saved = std::exchange(comm::pretend_host, [](int rank, comm::RankHost& here) {
    if (rank == 2) here.boot_id += "-other";
  });
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "lo", 1);
  const TempDirectory directory;
  expect_rounds(loopback_place(directory.path()), 6);
  comm::pretend_host = saved;
}

}  // namespace
}  // namespace rondo::testing
