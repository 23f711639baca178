// Ranks of several hosts that never meet: every rank says who is missing or wrong, at the bootstrap
// deadline. And ranks in PID namespaces of their own, which do meet.
#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <thread>
#include <utility>

#include "comm/bootstrap/identity/host.hpp"
#include "tests/comm/bootstrap/meeting_helpers.hpp"
#include "tests/comm/faults/hosts_world.hpp"
#include "tests/comm/faults/operations.hpp"
#include "tests/harness/container.hpp"

namespace rondo::testing {
namespace {

/// Four ranks that do no more than this; their bootstrap deadline is 1.5 s.
HostsGang come(const Hosts& hosts, const HostsGang::RawBody& body,
               std::chrono::milliseconds deadline = std::chrono::milliseconds{1500}) {
  Config config;
  config.bootstrap_timeout = deadline;
  config.stall_timeout = std::chrono::seconds{20};
  return HostsGang::raw(hosts, kFour, body, config);
}

/// Until the deadline: a process of another version of rondo comes as `rank`. Returns what rank 0 says.
std::string come_with_another_version(const Config& config, uint32_t rank) {
  const auto until = std::chrono::steady_clock::now() + config.bootstrap_timeout;
  sockaddr_in at{.sin_family = AF_INET, .sin_port = htons(7000), .sin_addr = {}, .sin_zero = {}};
  expect(inet_pton(AF_INET, Hosts::address(0).c_str(), &at.sin_addr) == 1, "address");
  std::string heard;
  while (heard.empty() && std::chrono::steady_clock::now() < until) {
    const transport::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) continue;
    comm::Hello hello = good_hello(rank, 4, read_challenge(fd));
    hello.version += 1;
    send_bytes(fd, &hello, sizeof hello);
    heard = hear_out(fd);
  }
  return heard;
}

// Of a forked rank.
Link* own_link = nullptr;
void (*usual_host)(int rank, comm::RankHost& here) = nullptr;

/// Asked once all ranks have come to the first meeting.
void announce_and_pretend(int rank, comm::RankHost& here) {
  usual_host(rank, here);
  own_link->announce("going");
}

}  // namespace

TEST_CASE("ranks of several hosts that do not meet say which are missing") {
  const Hosts hosts(2);
  for (const int missing : {0, 1, 3}) {
    const std::string rank = "rank " + std::to_string(missing);
    INFO(rank << " never starts");
    HostsGang gang = come(hosts, [&](const Config& own, Link&, Outcome&) {
      return own.rank == missing ? Status() : Communicator::create(own).status();
    });
    gang.check(now_ns(), {.row = rank + " never starts",
                          .survivors = all_but(missing),
                          .codes = {Code::kBootstrap, Code::kTimeout},
                          .says = {rank},
                          .within_s = 3});
  }
}

TEST_CASE("a rank that starts twice is named by all, also by one that comes later") {
  const Hosts hosts(2);
  HostsGang gang = come(hosts, [&](const Config& own, Link& link, Outcome&) {
    if (own.rank == 2) link.await("go");
    Config as = own;
    if (own.rank == 3) as.rank = 1;
    return Communicator::create(as).status();
  });
  const int64_t start_ns = now_ns();
  gang.ranks().await_end(3);
  gang.ranks().tell(2, "go");
  gang.check(start_ns, {.row = "a rank starts twice",
                        .survivors = kAllFour,
                        .codes = {Code::kBootstrap},
                        .says = {"rank 1 was given twice: to pid ", " and to pid ",
                                 " on " + Hosts::address(0), " on " + Hosts::address(1)},
                        .within_s = 3});
}

TEST_CASE(
    "ranks that RONDO_INTERFACE lets other hosts reach at loopback only are refused at once") {
  const Hosts hosts(2);
  HostsGang gang = come(
      hosts,
      [](const Config& own, Link&, Outcome&) {
        if (own.rank == 3) setenv("RONDO_INTERFACE", "lo", 1);
        return Communicator::create(own).status();
      },
      std::chrono::seconds{20});
  gang.check(now_ns(), {.row = "RONDO_INTERFACE=lo on one of two hosts, bootstrap deadline 20 s",
                        .survivors = kAllFour,
                        .codes = {Code::kInvalidArgument},
                        .says = {"rank 3 on host ", "127.0.0.1 (lo)", "RONDO_INTERFACE"},
                        .within_s = 10});
}

TEST_CASE("where rank 0's host is cut off both sides say who is missing") {
  const Hosts hosts(2);
  hosts.cut(0);
  const int64_t start_ns = now_ns();
  HostsGang gang = come(
      hosts, [](const Config& own, Link&, Outcome&) { return Communicator::create(own).status(); });
  gang.check(start_ns, {.row = "rank 0's host is absent",
                        .survivors = kAllFour,
                        .codes = {Code::kBootstrap, Code::kTimeout},
                        .says = {"rank"},
                        .within_s = 4});
  const std::string of_host_0 = gang.outcome(0).text, of_host_1 = gang.outcome(2).text;
  INFO(of_host_0 << " / " << of_host_1);
  CHECK(of_host_0.find("ranks 2 and 3") != std::string::npos);
  CHECK(of_host_1.find("rank 0") != std::string::npos);
}

TEST_CASE(
    "a rank killed at any moment after it has come is named by all, long before the deadline") {
  const Hosts hosts(2);
  for (int turn = 0; turn < 24; ++turn) {
    const int victim = turn % 4;
    const std::string rank = "rank " + std::to_string(victim);
    INFO(rank << " killed, turn " << turn);
    HostsGang gang = come(
        hosts,
        [](const Config& own, Link& link, Outcome&) {
          own_link = &link;
          usual_host = std::exchange(comm::pretend_host, &announce_and_pretend);
          auto comm = Communicator::create(own);
          Status status = comm.status();
          while (status.ok()) status = comm->barrier();
          return status;
        },
        std::chrono::seconds{20});
    gang.await_all("going");
    // A random moment; nothing is synchronised by it.
    std::this_thread::sleep_for(std::chrono::microseconds(turn * 200));
    gang.check(gang.signal(victim, SIGKILL), {.row = rank + " killed during create",
                                              .survivors = all_but(victim),
                                              .codes = {Code::kPeerDied},
                                              .says = {rank},
                                              .within_s = 3});
  }
}

TEST_CASE("a rank of another version of rondo is named by all of them") {
  const Hosts hosts(2);
  HostsGang gang = come(hosts, [](const Config& own, Link&, Outcome&) {
    if (own.rank != 3) return Communicator::create(own).status();
    const std::string heard = come_with_another_version(own, 3);
    expect(heard.find("speaks version") != std::string::npos, "rank 0 says " + heard);
    return Status();
  });
  gang.check(now_ns(), {.row = "a rank has another version",
                        .survivors = all_but(3),
                        .codes = {Code::kBootstrap, Code::kTimeout},
                        .says = {"rank 3", "another version"},
                        .within_s = 4});
}

TEST_CASE("ranks in PID namespaces of their own meet on several hosts, and name who dies") {
  const Hosts hosts(2);
  for (const int victim : {0, 3}) {
    HostsGang gang =
        HostsGang::raw(hosts, kFour, [](const Config& own, Link& link, Outcome& outcome) {
          in_container([&] {
            auto comm = Communicator::create(own);
            expect(comm.ok(), comm.status().to_string());
            Buffers buffers(1200, false);
            outcome.is(call_until_failure(*comm, link, operations()[0], buffers));
          });
          return Status();
        });
    gang.await_all("going");
    const std::string rank = "rank " + std::to_string(victim) + " ";
    gang.check(gang.signal(victim, SIGKILL),
               {.row = "of ranks in PID namespaces of their own, " + rank + "killed",
                .survivors = all_but(victim),
                .codes = {Code::kPeerDied},
                .says = {rank},
                .within_s = 1});
  }
}

}  // namespace rondo::testing
