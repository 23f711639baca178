// Ranks that share no directory: the meeting over TCP, who is kept out of it, and what everybody
// learns when it fails.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "comm/bootstrap/connection/wire.hpp"
#include "comm/bootstrap/identity/host.hpp"
#include "comm/bootstrap/rendezvous/rendezvous.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"
#include "rondo/log.hpp"
#include "tests/comm/bootstrap/tcp_helpers.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/container.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using comm::Bootstrap;
using comm::Hello;
using comm::Identity;
using testing::expect;
using testing::expect_eq;
using testing::ForkGang;
using testing::How;
using testing::in_container;
using testing::Link;
using transport::UniqueFd;

/// A connection to whoever listens at `port`, and what it says first.
struct Caller {
  explicit Caller(int port) : fd(connect_to_loopback(port)), challenge(read_challenge(fd)) {}
  /// What comes back.
  comm::Frame call(const Hello& hello) {
    send_bytes(fd, &hello, sizeof hello);
    comm::FrameParser parser(1 << 20);
    while (true) {
      auto frame = parser.next();
      expect(frame.ok(), frame.status().to_string());
      if (*frame) return std::move(**frame);
      char bytes[512];
      const ssize_t got = recv(fd.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return {};
      parser.feed(bytes, static_cast<size_t>(got));
    }
  }
  UniqueFd fd;
  comm::Challenge challenge;
};

void meet_and_exchange(const Identity& id, const std::string& name = "world") {
  Bootstrap met = must_meet(id, kLong, name);
  auto blobs = met.all_gather(name + std::to_string(id.rank));
  expect(blobs.ok(), blobs.status().to_string());
  // Descriptors go over the unix socket that the ranks have agreed on.
  UniqueFd own(open("/dev/null", O_RDWR | O_CLOEXEC));
  auto fds = all_gather_fds(met, own.get());
  expect(fds.ok(), fds.status().to_string());
  for (int i = 0; i < id.world_size; ++i) {
    const auto at = static_cast<size_t>(i);
    expect_eq((*blobs)[at].bytes, name + std::to_string(i), "blob");
    expect_eq((*fds)[at].valid(), i != id.rank, "descriptor");
    expect_eq(met.peers()[at].pidfd.valid(), !met.peers()[at].same_process, "pidfd");
  }
  expect_eq(met.find_dead(), -1, "nobody is dead");
  expect(met.barrier().ok(), "barrier");
}

TEST_CASE("ranks meet over TCP and pass descriptors", "[tcp]") {
  for (How how : {How::kThreads, How::kForks}) {
    for (int n : {2, 3, 5}) {
      for (const char* secret : {"s3cret", ""}) {
        const int port = free_port();
        INFO((how == How::kForks ? "forks" : "threads")
             << ", " << n << " ranks, secret " << secret);
        testing::require_all_ok(testing::run_ranks(
            how, n, [&](int rank) { meet_and_exchange(tcp_identity(rank, n, port, secret)); }));
      }
    }
  }
  const int port = free_port();
  testing::require_all_ok(testing::run_ranks(How::kForks, 2, [&](int rank) {
    meet_and_exchange(tcp_identity(rank, 2, port, "s3cret", "localhost"));
  }));
}

TEST_CASE("a port serves one communicator after the other, however they overlap", "[tcp]") {
  const int port = free_port();
  testing::require_all_ok(testing::run_ranks(How::kForks, 3, [&](int rank) {
    for (int i = 0; i < 10; ++i) meet_and_exchange(tcp_identity(rank, 3, port));
  }));
  testing::require_all_ok(testing::run_ranks(How::kForks, 6, [&](int i) {
    meet_and_exchange(tcp_identity(i / 2, 3, port), i % 2 == 0 ? "even" : "odd");
  }));
}

TEST_CASE("jobs that share a port and a secret do not disturb each other", "[tcp]") {
  const int port = free_port();
  testing::require_all_ok(testing::run_ranks(How::kForks, 6, [&](int i) {
    Identity id = tcp_identity(i / 2, 3, port);
    id.job = i % 2 == 0 ? "slurm-7-0" : "slurm-8-0";
    meet_and_exchange(id);
  }));
}

TEST_CASE("ranks in containers of their own see each other live and die", "[tcp]") {
  if (geteuid() != 0) {
    WARN("not root: cannot make namespaces");
    return;
  }
  const int port = free_port();
  ForkGang gang(3, [&](int rank, Link& link) {
    in_container([&] {
      expect_eq(getpid(), 1, "every rank is pid 1 to itself");
      Bootstrap met = must_meet(tcp_identity(rank, 3, port));
      expect(met.barrier().ok(), "barrier");
      for (int i = 0; i < 3; ++i) {
        const comm::Peer& peer = met.peers()[static_cast<size_t>(i)];
        expect_eq(peer.same_process, i == rank, "same process");
        expect_eq(peer.pidfd.valid(), i != rank, "pidfd");
      }
      if (rank == 2) return;  // its end is what the others wait for
      pollfd ended{met.peers()[2].pidfd.get(), POLLIN, 0};
      expect(poll(&ended, 1, 30'000) == 1, "rank 2 does not end");
      expect_eq(met.find_dead(2), 2, "find_dead");
      link.announce("seen");
    });
  });
  gang.await(0, "seen");
  gang.await(1, "seen");
  testing::require_all_ok(gang.join());
}

// Once per process: before another case makes it.
TEST_CASE("rank 0 warns of a short secret where others can listen, once", "[tcp]") {
  std::vector<std::string> warnings;
  set_log_callback([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  for (const char* secret : {"sixteen letters.", "s3cret", "s3cret"}) {
    for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
      CHECK(comm::Rendezvous::resolve(tcp_identity(0, 2, 29501, secret, host), "world").ok());
    }
  }
  set_log_callback({});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("has 6 characters") != std::string::npos);
}

TEST_CASE("without a secret nobody listens where others can come", "[tcp]") {
  for (const std::string host : {"0.0.0.0", "[::]", "203.0.113.7"}) {
    for (int rank : {0, 1}) {
      expect_no_meeting(tcp_identity(rank, 2, 29501, "", host), kShort, Code::kInvalidArgument,
                        {"has no secret", host});
    }
  }
  expect_no_meeting(tcp_identity(0, 2, 29501, "s3cret", "203.0.113.7"), kShort,
                    Code::kInvalidArgument, {"no address of this host"});
}

TEST_CASE("addresses that are none are refused", "[tcp]") {
  const auto check_refused = [](const std::string& address, const std::string& part) {
    Identity id = tcp_identity(0, 2, 1);
    id.rendezvous = address;
    expect_no_meeting(id, kShort, Code::kInvalidArgument, {part});
  };
  for (const char* address :
       {"tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:70000", "tcp://127.0.0.1:ssh", "tcp://:29501", "tcp://::1:29501"}) {
    check_refused(address, address);
  }
  check_refused("tpc://127.0.0.1:29501", "tcp://HOST:PORT");
}

TEST_CASE("over TCP, too, missing ranks are named", "[tcp]") {
  const int port = free_port();
  testing::require_all_ok(testing::run_ranks(How::kForks, 2, [&](int rank) {
    expect_no_meeting(
        tcp_identity(rank, 4, port), kMedium, Code::kBootstrap,
        {"ranks 2 and 3 of 4 did not come within 3 s;", "tcp://127.0.0.1:" + std::to_string(port),
         "127.0.0.1 here, which no other host reaches"});
  }));
  expect_no_meeting(tcp_identity(1, 2, port), kShort, Code::kBootstrap,
                    {"rank 0 of 2 did not come within 0.7 s"});
}

/// Rank 1 of `size` ranks, which has been let in, as a caller that the test holds.
struct RankOne : Caller {
  RankOne(int port, uint32_t size) : Caller(port) {
    REQUIRE(call(good_hello(1, size, challenge)).kind == comm::FrameKind::kProof);
  }
};

TEST_CASE("over TCP a rank given twice is named on every rank", "[tcp]") {
  for (int twice : {0, 1}) {
    const int port = free_port();
    const std::string named = "rank " + std::to_string(twice) + " was given twice: to pid ";
    ForkGang gang(2, [&](int i, Link& link) {
      if (i == 1) link.await("go");
      expect_no_meeting(tcp_identity(i == 1 ? twice : 0, 3, port), kLong, Code::kBootstrap,
                        {named});
    });
    RankOne one(port, 3);
    gang.tell(1, "go");
    testing::require_all_ok(gang.join());
    REQUIRE_THAT(hear_out(one.fd), testing::contains(named));
  }
}

TEST_CASE("over TCP ranks that disagree about the world's size all hear of it", "[tcp]") {
  const int port = free_port();
  const std::string named = "says that there are 5 ranks, rank 0 says 4";
  ForkGang gang(2, [&](int i, Link& link) {
    if (i == 1) link.await("go");
    expect_no_meeting(tcp_identity(2 * i, i == 1 ? 5 : 4, port), kLong, Code::kBootstrap, {named});
  });
  RankOne one(port, 4);
  gang.tell(1, "go");
  testing::require_all_ok(gang.join());
  REQUIRE_THAT(hear_out(one.fd), testing::contains(named));
}

TEST_CASE("another secret, a recorded hello and a changed one stay outside", "[tcp]") {
  const int port = free_port();
  ForkGang gang(3, [&](int i, Link& link) {
    if (i == 2) {
      for (const char* secret : {"guess", ""}) {
        expect_no_meeting(tcp_identity(1, 2, port, secret), kLong, Code::kBootstrap,
                          {"another secret"});
      }
      return link.announce("refused");
    }
    if (i == 1) link.await("go");
    meet_and_exchange(tcp_identity(i, 2, port));
  });
  gang.await(2, "refused");
  const auto refused = [&](const comm::Frame& frame) {
    REQUIRE(frame.kind == comm::FrameKind::kError);
    REQUIRE_THAT(frame.payload, testing::contains("another secret"));
  };
  Caller first(port), second(port), third(port);
  refused(second.call(good_hello(1, 2, first.challenge)));
  Hello changed = good_hello(1, 2, third.challenge);
  changed.left_ms = 1;  // would end the job at once
  refused(third.call(changed));
  gang.tell(1, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("rank 0 tells at the end of its wait who came with another secret", "[tcp]") {
  const int port = free_port();
  const testing::TempDirectory place;
  ForkGang gang(4, [&](int i, Link&) {
    const bool over_tcp = i < 2;
    const std::string secret = i % 2 == 0 ? "s3cret" : "guess";
    const Identity id =
        over_tcp ? tcp_identity(i % 2, 2, port, secret) : identity(i % 2, 2, place, secret);
    if (i % 2 == 1) {
      return expect_no_meeting(id, kLong, Code::kBootstrap,
                               {"rank 0 has another secret than this rank"});
    }
    expect_no_meeting(id, kMedium, Code::kBootstrap,
                      {"rank 1 of 2 did not come within 3 s;",
                       " that called itself rank 1 and has another secret: RONDO_SECRET ",
                       over_tcp ? " connections, the last one from 127.0.0.1:"
                                : " connections, the last one (pid "});
  });
  testing::require_all_ok(gang.join());
}

TEST_CASE("strangers that take rank 0's last descriptors do not stop a job", "[tcp]") {
  const int port = free_port();
  ForkGang gang(3, [&](int i, Link& link) {
    std::vector<UniqueFd> ballast;
    if (i == 0) ballast = take_descriptors(256, 24);
    if (i != 0) link.await("go");
    meet_and_exchange(tcp_identity(i, 3, port));
  });
  std::vector<Caller> held;
  for (int k = 0; k < 60; ++k) held.emplace_back(port);
  tell_all(gang, {1, 2}, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("rank 0 without a descriptor for another rank says so to those who have come", "[tcp]") {
  const int port = free_port();
  ForkGang gang(1, [&](int, Link&) {
    // A listening socket, and one guest.
    const std::vector<UniqueFd> ballast = take_descriptors(256, 2);
    expect_no_meeting(tcp_identity(0, 3, port), kLong, Code::kResourceExhausted,
                      {"cannot accept another rank", "RLIMIT_NOFILE is 256"});
  });
  RankOne one(port, 3);
  UniqueFd another(connect_to_loopback(port));
  testing::require_all_ok(gang.join());
  REQUIRE_THAT(hear_out(one.fd), testing::contains("RLIMIT_NOFILE is 256"));
}

TEST_CASE("a rank without a descriptor says that, not that it is on another host", "[tcp]") {
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [](int) {
    const std::vector<UniqueFd> ballast = take_descriptors(256, 0);
    expect_failure(comm::RankHost::here(0).status(), Code::kResourceExhausted,
                   {"RLIMIT_NOFILE is 256"});
  }));
}

TEST_CASE("a rank that is sent away in a throng, or forgotten, comes again until it is heard",
          "[tcp]") {
  int port = 0;
  UniqueFd listener = listen_on_loopback(port);
  ForkGang gang(2, [&](int i, Link& link) {
    listener.reset();  // this process's copy
    if (i == 0) link.await("go");
    meet_and_exchange(tcp_identity(i, 2, port));
  });
  // As rank 0 does with the oldest of too many strangers, and with all at a meeting's end.
  for (int k = 0; k < 10; ++k) {
    const UniqueFd fd = accept_one(listener);
    const comm::Challenge challenge = comm::make_challenge();
    send_bytes(fd, &challenge, sizeof challenge);
    Hello hello{};
    REQUIRE(recv(fd.get(), &hello, sizeof hello, MSG_WAITALL) == sizeof hello);
  }
  for (int k = 0; k < 10; ++k) accept_one(listener);
  // A socket under repair closes without telling the other end, as one of a host that fails.
  UniqueFd mute = accept_one(listener);
  const int on = 1;
  if (setsockopt(mute.get(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) != 0) {
    WARN("without CAP_NET_ADMIN it cannot go unnoticed: an ordinary close instead");
  }
  mute.reset();
  listener.reset();
  gang.tell(0, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("over TCP a rank that ends while the ranks meet is named", "[tcp]") {
  const int port = free_port();
  const std::string named = "rank 1 (pid " + std::to_string(getpid()) + ") ended while";
  ForkGang gang(1, [&](int, Link&) {
    expect_no_meeting(tcp_identity(0, 4, port), kLong, Code::kPeerDied, {named});
  });
  Caller two(port);
  REQUIRE(two.call(good_hello(2, 4, two.challenge)).kind == comm::FrameKind::kProof);
  { const RankOne one(port, 4); }
  testing::require_all_ok(gang.join());
  REQUIRE_THAT(hear_out(two.fd), testing::contains(named));
}

TEST_CASE("over TCP a connection that is reset while the ranks meet proves no end", "[tcp]") {
  const int port = free_port();
  ForkGang gang(1, [&, pid = std::to_string(getpid())](int, Link&) {
    expect_no_meeting(tcp_identity(0, 3, port), kLong, Code::kPeerDied,
                      {"no connection to rank 1 (pid " + pid +
                       ") while the ranks were meeting: the connection was reset"});
  });
  RankOne one(port, 3);
  reset_connection(std::move(one.fd));
  testing::require_all_ok(gang.join());
}

TEST_CASE("a child that is forked while ranks meet does not keep the port open", "[tcp]") {
  const int port = free_port();
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  ForkGang gang(1, [&](int, Link& link) {
    const std::thread meeting(
        [&] { (void)Bootstrap::meet(tcp_identity(0, 2, port), "world", kLong); });
    const UniqueFd caller = connect_to_loopback(port);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const pid_t own = getpid();
      expect(write(ends[1], &own, sizeof own) == sizeof own, "write");
      while (true) pause();
    }
    link.await("never");
  });
  close(ends[1]);
  pid_t child = -1;
  REQUIRE(read(ends[0], &child, sizeof child) == sizeof child);
  // Not await_end(): the child has this rank's link, too.
  const UniqueFd rank(static_cast<int>(syscall(SYS_pidfd_open, gang.pid(0), 0)));
  gang.kill(0, SIGKILL);
  pollfd ended{rank.get(), POLLIN, 0};
  REQUIRE(poll(&ended, 1, 30'000) == 1);
  CHECK_FALSE(connect_once(port).valid());
  kill(child, SIGKILL);
  close(ends[0]);
  (void)gang.join();
}

TEST_CASE("ranks share a host that have one kernel and one network namespace", "[tcp]") {
  const comm::RankHost here = comm::RankHost::here(0).value();
  REQUIRE_FALSE(here.name.empty());
  REQUIRE(here.boot_id.size() == 36);
  REQUIRE_FALSE(here.network.empty());
  REQUIRE(comm::group_by_host({here, here, here}).hosts() == 1);
  comm::RankHost booted_later = here, contained = here, of_another = here;
  booted_later.boot_id.back() ^= 1;
  contained.network += "1";
  of_another.uid = "12345";
  const std::vector<comm::RankHost> all{here, booted_later, here, contained, booted_later};
  REQUIRE(comm::group_by_host(all) == base::HostMap({0, 1, 0, 2, 1}));
  // Users matter between ranks that share memory.
  const auto check = [](const std::vector<comm::RankHost>& ranks) {
    return comm::check_one_user(ranks, comm::group_by_host(ranks));
  };
  REQUIRE(check(all).ok());
  of_another.network += "1";
  REQUIRE(check({here, of_another}).ok());
  const Status refused = check({here, of_another, contained});
  REQUIRE(refused.code() == Code::kUnavailable);
  REQUIRE_THAT(refused.message(), testing::contains("rank 2 runs as uid"));
}

/// Rank `rank` of hosts 0, 0, 1 in turn.
void pretend_three_on_two_hosts(int rank, comm::RankHost& here) {
  if (rank % 3 == 2) here.boot_id += "-other";
}

TEST_CASE("ranks of several hosts exchange blobs with all, and descriptors on their host",
          "[tcp]") {
  const int port = free_port();
  comm::pretend_host = pretend_three_on_two_hosts;
  testing::require_all_ok(testing::run_ranks(How::kForks, 6, [&](int rank) {
    Bootstrap met = must_meet(tcp_identity(rank, 6, port));
    expect(met.hosts() == base::HostMap({0, 0, 1, 0, 0, 1}), "hosts");
    auto blobs = met.all_gather("of " + std::to_string(rank));
    expect(blobs.ok() && blobs->size() == 6 && (*blobs)[5].bytes == "of 5",
           blobs.status().to_string());
    const UniqueFd own(memfd_create(std::to_string(rank).c_str(), MFD_CLOEXEC));
    auto fds = all_gather_fds(met, own.get());
    expect(fds.ok(), fds.status().to_string());
    const auto members = met.hosts().ranks_on(met.hosts().host_of(rank));
    expect_eq(fds->size(), members.size(), "descriptors");
    for (size_t local = 0; local < members.size(); ++local) {
      const bool is_own = members[local] == rank;
      expect_eq((*fds)[local].valid(), !is_own, "descriptor of each other rank of the host");
      const bool has_pidfd = met.peers()[static_cast<size_t>(members[local])].pidfd.valid();
      expect_eq(has_pidfd, !is_own, "pidfd of each other rank of the host");
    }
    auto first = broadcast_fd(met, met.is_first_on_host() ? own.get() : -1);
    expect(first.ok() && first->valid() != met.is_first_on_host(), first.status().to_string());
    expect(met.barrier().ok(), "barrier");
    expect_eq(met.take_control().size(), rank == 0 || rank == 2 ? size_t{1} : size_t{0},
              "control connections");
    expect(met.meeting_place(5).starts_with("tcp://127.0.0.1:"), met.meeting_place(5));
  }));
  comm::pretend_host = nullptr;
}

TEST_CASE("a failure on one of several hosts reaches all, with the rank's own number", "[tcp]") {
  const int port = free_port();
  comm::pretend_host = pretend_three_on_two_hosts;
  testing::require_all_ok(testing::run_ranks(How::kForks, 6, [&](int rank) {
    auto met = Bootstrap::meet(tcp_identity(rank, 6, port), "world", kLong);
    Status status = met.status();  // others may still meet when rank 5 fails
    if (rank == 5 && status.ok()) met->fail(Status(Code::kSystem, "no luck"));
    if (status.ok()) status = all_gather_fds(*met, -1).status();
    if (status.ok()) status = met->barrier();
    expect_failure(status, Code::kSystem, {rank == 5 ? "no luck" : "rank 5: no luck"});
  }));
  comm::pretend_host = nullptr;
}

TEST_CASE("ranks of two users meet over TCP to learn that they cannot share", "[tcp]") {
  if (geteuid() != 0) {
    WARN("not root: cannot become another user");
    return;
  }
  const int port = free_port();
  testing::require_all_ok(testing::run_ranks(How::kForks, 3, [&](int rank) {
    if (rank == 1) expect(setuid(65534) == 0, "setuid");
    expect_no_meeting(tcp_identity(rank, 3, port), kLong, Code::kUnavailable,
                      {"rank 1 runs as uid 65534 and rank 0 as uid 0"});
  }));
}

}  // namespace
}  // namespace rondo
