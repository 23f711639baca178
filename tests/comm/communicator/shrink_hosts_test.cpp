// Communicator::shrink() where ranks are on two hosts with a network each: after the host of rank 0 has
// died, the first rank of another host, or a host's last rank.
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/base/clock.hpp"
#include "tests/comm/communicator/every_collective.hpp"
#include "tests/comm/communicator/worlds.hpp"
#include "tests/harness/bad_network.hpp"
#include "tests/harness/hosts.hpp"

namespace rondo::testing {
namespace {

using std::chrono::milliseconds;

constexpr int kPort = 29501;  // where the ranks meet, and the agents

using SharedFlag = Shared<std::atomic<bool>>;

Config config_on(const Hosts& hosts, int host, int rank, int size) {
  hosts.enter_network(host);
  setenv("RONDO_SECRET", "a secret of these tests", 1);
  setenv("UCX_TLS", "tcp", 1);
  Config config;
  config.rank = rank;
  config.world_size = size;
  config.rendezvous = "tcp://" + Hosts::address(0) + ":" + std::to_string(kPort);
  config.stall_timeout = config.bootstrap_timeout = 30s;
  return config;
}

/// The communicator that is left after `failed`. Takes at most `limit`, well before any patience ends.
Result<Communicator> shrink_within(std::chrono::seconds limit, Communicator& comm,
                                   milliseconds patience) {
  const Clock::time_point began = Clock::now();
  auto made = comm.shrink(patience);
  const double took_s = seconds_since(began);
  expect(took_s < static_cast<double>(limit.count()), "took " + std::to_string(took_s) + " s");
  return made;
}

/// Two ranks on each of two hosts.
void lose(const Hosts& hosts, const std::vector<int>& killed, bool during_shrink) {
  const std::vector<int> left = all_but(killed, 4);
  INFO("killed: " << killed.front() << " and others of " << killed.size()
                  << (during_shrink ? ", when the others shrink" : ""));
  Gang gang(4, [&](int rank, Link& link) {
    Communicator comm = created(config_on(hosts, rank / 2, rank, 4));
    calls::everything(comm, {.count = 11});
    link.announce("ready");
    link.await("go");
    link.announce("shrinks");
    const std::string failed = during_shrink ? "nothing" : error_of_barriers(comm).to_string();
    auto made = shrink_within(8s, comm, 15'000ms);
    expect_ok(made.status(), "after " + failed);
    expect(made->former_ranks() == left, "former ranks");
    calls::everything(*made, {.count = 37});
    calls::everything(*made, {.count = 20'000, .in_place = true});
    expect_ok(made->barrier(), "barrier");
  });
  const auto kill = [&] {
    for (const int rank : killed) gang.kill(rank, SIGKILL);
  };
  gang.await_all("ready");
  if (!during_shrink) kill();
  gang.tell_each(left, "go");
  gang.await_each(left, "shrinks");
  if (during_shrink) kill();
  gang.require_ok(killed);
}

struct Partition {
  std::vector<int> placement, on;  // the hosts of all ranks; which of them go on
  int cut;                         // a host
  bool hears = false;              // it is not heard, but hears the others
  // It may hold the host of rank 0 for lost, and knows nothing of a third one.
  milliseconds patience{25'000};
};

void part(const Hosts& hosts, const Partition& partition) {
  INFO("host " << partition.cut << " of " << partition.placement.back() + 1 << " "
               << (partition.hears ? "not heard" : "cut off"));
  const int ranks = static_cast<int>(partition.placement.size());
  BadNetwork network(hosts, 1);
  Gang gang(ranks, [&](int rank, Link& link) {
    setenv("RONDO_HOST_TIMEOUT", "1", 1);
    const int host = partition.placement[static_cast<size_t>(rank)];
    Communicator comm = created(config_on(hosts, host, rank, ranks));
    const Status first = comm.barrier();
    link.announce("ready");
    const Status failed = error_of_barriers(comm, first);
    auto made = shrink_within(6s, comm, partition.patience);
    const bool goes_on = std::ranges::count(partition.on, rank) > 0;
    expect_eq(made.ok(), goes_on, "after " + failed.to_string() + made.status().to_string());
    if (made.ok()) {
      expect(made->former_ranks() == partition.on, "former ranks");
      calls::everything(*made, {.count = 37});
    } else {
      expect_error(made.status(), Code::kTimeout);
      // The time that has passed, and not the patience.
      expect(made.status().message().find("within 25 s") == std::string::npos,
             made.status().to_string());
    }
    link.announce("done");
    link.await("end");
  });
  gang.await_all("ready");
  for (int other = 0; other < hosts.count(); ++other) {
    network.set(partition.cut, other, Wire::none());
    if (!partition.hears) network.set(other, partition.cut, Wire::none());
  }
  gang.await_all("done");
  gang.tell_all("end");
  gang.require_ok();
}

/// What both hosts' ranks do while their connections are reset: reduce, split, and shrink.
Status reduce_and_split(Communicator& comm, const std::atomic<bool>& over, bool& ends) {
  int32_t flag = over ? 1 : 0;
  RONDO_TRY(comm.all_reduce(&flag, &flag, 1, kInt, ReduceOp::kMax));
  ends = flag == 1;
  std::vector<float> values(30'000, 1.0F);
  RONDO_TRY(comm.all_reduce(values, values));
  expect(values.back() == static_cast<float>(comm.size()), "the sum");
  auto part = RONDO_TRY(comm.split(0, -comm.rank()));
  return part->barrier();
}

/// How many connections the network of that process has accepted.
long accepted_connections(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/net/snmp");
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("Tcp:")) continue;
    std::istringstream stream(line);
    std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
    for (size_t i = 0; i < words.size() && !names.empty(); ++i) {
      if (names[i] == "PassiveOpens") return std::stol(words[i]);
    }
    names = std::move(words);
  }
  throw std::runtime_error("the kernel does not count connections");
}

}  // namespace

TEST_CASE("a rank of another host that does not come is asked ever less often", "[hosts]") {
  const Hosts hosts(2);
  Gang gang(3, [&](int rank, Link& link) {
    Communicator comm = created(config_on(hosts, rank / 2, rank, 3));
    expect_ok(comm.barrier(), "barrier");
    link.announce("ready");
    link.await("go");
    comm.abort("rank 2 is stopped");
    Communicator made = expect_value(comm.shrink(4'000ms), "shrink");
    expect(made.former_ranks() == std::vector<int>{0, 1}, "former ranks");
  });
  gang.await_all("ready");
  gang.kill(2, SIGSTOP);
  const long before = accepted_connections(gang.pid(2));
  gang.tell_each({0, 1}, "go");
  gang.await_ends({0, 1});
  const long asked = accepted_connections(gang.pid(2)) - before;
  INFO(asked << " connections");
  CHECK(asked > 0);
  CHECK(asked < 40);  // 20 a second in four seconds would be 80
  gang.kill(2, SIGKILL);
  gang.require_ok({2});
}

TEST_CASE("of hosts that lose each other only one part goes on", "[hosts]") {
  const Hosts hosts(3);
  part(hosts, {{0, 0, 1, 1}, {0, 1}, 1});
  part(hosts, {{0, 0, 1, 1}, {0, 1}, 0});
  part(hosts, {{0, 1, 1}, {1, 2}, 0});
  part(hosts, {{0, 1}, {}, 0});  // of two ranks neither: the other one may live
  part(hosts, {{0, 1, 2}, {1, 2}, 0});
  part(hosts, {{0, 0, 1, 2}, {0, 1, 2}, 2, false, 2'000ms});
  part(hosts, {{0, 1, 2}, {1, 2}, 0, true});
  part(hosts, {{0, 1, 1}, {1, 2}, 0, true});
}

// Of two hosts that lose each other the first one goes on. Its rank 0 ends when the network is back:
// that leaves two ranks of the second host, and one of the first, which may have gone on with it.
TEST_CASE("ranks that ended on a lost host may have gone on before", "[hosts]") {
  const Hosts hosts(2);
  Gang gang(4, [&](int rank, Link& link) {
    setenv("RONDO_HOST_TIMEOUT", "1", 1);
    Communicator comm = created(config_on(hosts, rank / 2, rank, 4));
    const Status first = comm.barrier();
    link.announce("ready");
    const Status failed = error_of_barriers(comm, first);
    auto made = comm.shrink();
    expect_eq(made.ok(), rank < 2, "after " + failed.to_string() + made.status().to_string());
    link.announce("done");
    link.await("go");
    if (made.ok()) {
      expect_ok(made->shrink().status(), "shrink");
    } else {
      // The proof that rank 0 has ended is there after one of these calls.
      for (int turn = 0; turn < 10; ++turn) {
        made = comm.shrink(2'000ms);
        expect_error(made.status(), Code::kTimeout);  // it must not go on beside rank 1
      }
      expect_contains(made.status().message(),
                      "rank 0 ended, and might have continued with them before that");
    }
    link.announce("shrunk");
    link.await("end");
  });
  gang.await_all("ready");
  hosts.cut(1);
  gang.await_all("done");
  hosts.mend(1);
  gang.kill(0, SIGKILL);
  gang.await_end(0);
  gang.tell_each({1, 2, 3}, "go");
  gang.await_each({1, 2, 3}, "shrunk");
  gang.tell_each({1, 2, 3}, "end");
  gang.require_ok({0});
}

TEST_CASE("agents whose connection is reset have a new one before the host is silent", "[hosts]") {
  if (!Hosts::can_reset()) return;
  const Hosts hosts(2);
  SharedFlag over;
  Gang gang(2, [&](int rank, Link& link) {
    setenv("RONDO_HOST_TIMEOUT", "2", 1);
    Communicator comm = created(config_on(hosts, rank, rank, 2));
    link.announce("ready");
    for (int32_t flag = 0; flag == 0;) {
      flag = *over ? 1 : 0;
      expect_ok(comm.all_reduce(&flag, &flag, 1, kInt, ReduceOp::kMax), "all_reduce");
    }
    if (rank == 1) comm.abort("through the new connection");
    expect_contains(error_of_barriers(comm).message(), "through the new connection");
    link.announce("failed");
    link.await("end");
  });
  gang.await_all("ready");
  CHECK(hosts.reset(0, 1, kPort) == 1);
  // Longer than a host may be silent.
  std::this_thread::sleep_for(3'000ms);
  *over = true;
  gang.await_all("failed");
  gang.tell_all("end");
  gang.require_ok();
}

// Every rank lives: after each reset all of them make the next communicator.
TEST_CASE("hosts whose connections are reset meet again, whatever they do", "[hosts]") {
  if (!Hosts::can_reset()) return;
  const Hosts hosts(2);
  for (const std::vector<int>& placement : {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1, 1}}) {
    INFO(placement.size() << " ranks");
    constexpr int kResets = 8;
    const int ranks = static_cast<int>(placement.size());
    SharedFlag over;
    Gang gang(
        ranks,
        [&](int rank, Link& link) {
          Communicator comm =
              created(config_on(hosts, placement[static_cast<size_t>(rank)], rank, ranks));
          link.announce("ready");
          for (bool ends = false; !ends;) {
            const Status failed = reduce_and_split(comm, *over, ends);
            if (failed.ok()) continue;
            ends = false;
            comm = expect_value(comm.shrink(), "after " + failed.to_string());
            expect_eq(comm.size(), ranks, "ranks that go on after " + failed.to_string());
          }
        },
        100s);
    gang.await_all("ready");
    std::mt19937 random(static_cast<unsigned>(ranks));
    int reset = 0;
    for (int i = 0; i < kResets; ++i) {
      // The moment that is tried.
      std::this_thread::sleep_for(milliseconds(random() % 400));
      reset += hosts.reset(i % 2, 1 - i % 2);
    }
    CHECK(reset > kResets);
    *over = true;
    gang.require_ok();
  }
}

TEST_CASE("ranks of two hosts go on without those that are killed", "[hosts]") {
  const Hosts hosts(2);
  for (const bool during_shrink : {false, true}) {
    for (const std::vector<int>& killed : {std::vector<int>{0, 1}, {0}, {2}, {3}, {2, 3}, {0, 2}}) {
      lose(hosts, killed, during_shrink);
    }
  }
}

}  // namespace rondo::testing
