// A unique id alone brings ranks of two hosts together: it says where rank 0 is, as ncclUniqueId does.
#include <stdlib.h>

#include <algorithm>
#include <array>

#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/worlds.hpp"
#include "tests/harness/hosts.hpp"

namespace rondo::testing {
namespace {

constexpr int kRanks = 3;  // the first two on host 0

/// The means by which a program passes the id on: memory that the forked ranks share.
using Passing = Shared<std::array<char, kUniqueIdChars + 1>>;

Config config_of(int rank, const Passing& passing) {
  Config config;
  config.rank = rank;
  config.world_size = kRanks;
  config.unique_id = passing->data();
  config.bootstrap_timeout = 30s;
  return config;
}

/// `maker` makes the id on its host, then all ranks run `body`.
void with_id_of(const Hosts& hosts, int maker, const Passing& passing,
                const std::function<void(int rank)>& body) {
  Gang gang(kRanks, [&](int rank, Link& link) {
    hosts.enter_network(rank / 2);
    setenv("UCX_TLS", "tcp", 1);
    unsetenv("RONDO_SECRET");
    if (rank == maker) {
      const std::string id = expect_value(make_unique_id(), "make_unique_id");
      expect(id.size() <= kUniqueIdChars, id);
      std::ranges::copy(id, passing->data());
      link.announce("made");
    }
    link.await("go");
    body(rank);
  });
  gang.await(maker, "made");
  gang.tell_all("go");
  gang.require_ok();
}

}  // namespace

TEST_CASE("an id made at rank 0 or beside it leads ranks of another host there", "[hosts]") {
  const Hosts hosts(2);
  const Passing passing;
  for (const int maker : {0, 1}) {
    for (const char* interface : {"10.77.0.0/16", "fd77::/16"}) {
      setenv("RONDO_INTERFACE", interface, 1);
      INFO("made by rank " << maker << " with RONDO_INTERFACE=" << interface);
      with_id_of(hosts, maker, passing, [&](int rank) {
        Config config = config_of(rank, passing);
        for (const char* name : {"world", "second"}) {  // one id serves several communicators
          config.name = name;
          Communicator comm = created(config);
          calls::everything(comm, {.count = 11});
        }
      });
    }
  }
  unsetenv("RONDO_INTERFACE");
}

TEST_CASE("an id that was made on another host than rank 0's is refused there", "[hosts]") {
  const Hosts hosts(2);
  const Passing passing;
  with_id_of(hosts, 2, passing, [&](int rank) {
    Config config = config_of(rank, passing);
    config.bootstrap_timeout = 2s;
    const Status status = Communicator::create(config).status();
    const char* part = rank == 0 ? "10.77.0.2:" : "rank 0 of 3 did not come";
    expect(!status.ok(), "it met");
    expect_contains(status.message(), part);
  });
}

}  // namespace rondo::testing
