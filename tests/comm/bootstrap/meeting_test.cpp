// Ranks that find each other, and what every one of them learns when some do not come, come twice,
// or die on the way.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "comm/bootstrap/rendezvous/rendezvous.hpp"
#include "comm/bootstrap/session/bootstrap.hpp"
#include "tests/comm/bootstrap/meeting_helpers.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using comm::Bootstrap;
using comm::Identity;
using std::chrono::milliseconds;
using testing::expect;
using testing::expect_eq;
using testing::ForkGang;
using testing::How;
using testing::Link;
using testing::TempDirectory;
using transport::UniqueFd;

void expect_ok(const Status& status) { expect(status.ok(), status.to_string()); }

bool is_empty(const std::string& directory) { return std::filesystem::is_empty(directory); }

/// A file whose content says whose it is.
UniqueFd tagged_file(int rank) {
  UniqueFd fd(memfd_create("tag", MFD_CLOEXEC));
  expect(fd.valid() && write(fd.get(), &rank, sizeof rank) == sizeof rank, "memfd");
  return fd;
}

void expect_tag(const UniqueFd& fd, int rank) {
  int tag = -1;
  expect(pread(fd.get(), &tag, sizeof tag, 0) == sizeof tag, "the descriptor cannot be read");
  expect_eq(tag, rank, "whose descriptor");
  expect((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0, "a received descriptor survives exec");
}

/// Every operation once, with data that shows who gave it.
void exchange_everything(int rank, int n, const TempDirectory& place, const std::string& name) {
  Bootstrap b = must_meet(identity(rank, n, place), kLong, name);
  expect_eq(b.rank(), rank, "rank");
  expect_eq(b.size(), n, "size");

  const std::string blob(static_cast<size_t>(rank) * 70'001, static_cast<char>('a' + rank));
  auto blobs = b.all_gather(blob);
  expect_ok(blobs.status());
  expect_eq(blobs->size(), static_cast<size_t>(n), "blobs");
  for (int i = 0; i < n; ++i) {
    const auto& got = (*blobs)[static_cast<size_t>(i)].bytes;
    expect(got == std::string(static_cast<size_t>(i) * 70'001, static_cast<char>('a' + i)),
           "blob of rank " + std::to_string(i) + " is wrong on rank " + std::to_string(rank));
  }

  UniqueFd own = tagged_file(rank);
  auto from_root = broadcast_fd(b, rank == 0 ? own.get() : -1);
  expect_ok(from_root.status());
  if (rank != 0) expect_tag(*from_root, 0);

  const bool gives = rank % 3 != 1;
  auto fds = all_gather_fds(b, gives ? own.get() : -1);
  expect_ok(fds.status());
  for (int i = 0; i < n; ++i) {
    const UniqueFd& fd = (*fds)[static_cast<size_t>(i)];
    expect_eq(fd.valid(), i != rank && i % 3 != 1, "descriptor of rank " + std::to_string(i));
    if (fd.valid()) expect_tag(fd, i);
  }

  expect_ok(b.barrier());
  expect_eq(b.find_dead(), -1, "nobody is dead");
  auto pids = b.all_gather(std::to_string(getpid()));
  expect_ok(pids.status());
  for (int i = 0; i < n; ++i) {
    const comm::Peer& peer = b.peers()[static_cast<size_t>(i)];
    expect_eq(std::to_string(peer.pid), (*pids)[static_cast<size_t>(i)].bytes, "pid");
    expect_eq(peer.same_process, peer.pid == getpid(), "same process");
    expect_eq(peer.pidfd.valid(), !peer.same_process, "pidfd");
  }
  expect_ok(b.barrier());
  b.close_sockets();
}

TEST_CASE("ranks meet and exchange everything", "[bootstrap]") {
  for (How how : {How::kThreads, How::kForks}) {
    for (int n : {1, 2, 3, 5, 8}) {
      TempDirectory place;
      INFO((how == How::kForks ? "forks" : "threads") << ", " << n << " ranks");
      testing::require_all_ok(testing::run_ranks(
          how, n, [&](int rank) { exchange_everything(rank, n, place, "world"); }));
      REQUIRE(is_empty(place.path()));
    }
  }
}

TEST_CASE("a name can be used again at once, and several names at the same time", "[bootstrap]") {
  TempDirectory place;
  testing::require_all_ok(testing::run_ranks(How::kForks, 3, [&](int rank) {
    for (int i = 0; i < 20; ++i) exchange_everything(rank, 3, place, "world");
  }));
  testing::require_all_ok(testing::run_ranks(How::kThreads, 6, [&](int i) {
    exchange_everything(i / 2, 3, place, i % 2 == 0 ? "even" : "odd");
  }));
  REQUIRE(is_empty(place.path()));
}

TEST_CASE("the last meeting in a directory that rondo made removes it, whichever that is",
          "[bootstrap]") {
  TempDirectory place;
  // What is made below a folder with the setgid bit has it, too.
  REQUIRE(chmod(place.path().c_str(), GENERATE(0700, 02700)) == 0);
  const std::string parent = place.path() + "/made", folder = parent + "/job";
  Identity id = identity(0, 2, place);
  id.rendezvous = folder;
  for (const bool first_ends_first : {true, false}) {
    std::optional<comm::Listener> listeners[2];
    for (int i : {0, 1}) {
      auto made =
          comm::Rendezvous::resolve(id, std::string(1, static_cast<char>('a' + i)))->listen();
      REQUIRE(made.ok());
      listeners[i] = std::move(*made);
      REQUIRE(listeners[i]);
    }
    listeners[first_ends_first ? 0 : 1].reset();
    CHECK(std::filesystem::exists(folder));
    listeners[first_ends_first ? 1 : 0].reset();
    CHECK_FALSE(std::filesystem::exists(parent));
  }
  // A caller's own directory stays.
  REQUIRE(mkdir(parent.c_str(), 0700) == 0);
  REQUIRE(comm::Rendezvous::resolve(id, "a")->listen().ok());
  CHECK_FALSE(std::filesystem::exists(folder));
  CHECK(std::filesystem::exists(parent));
}

TEST_CASE("a rank 0 that cannot listen leaves no directory", "[bootstrap]") {
  TempDirectory place;
  testing::require_all_ok(testing::run_ranks(How::kForks, 1, [&](int) {
    Identity id = identity(0, 2, place);
    id.rendezvous = place.path() + "/made";
    // UBSan needs a descriptor to look at an object of a type that is new to it.
    expect(!Bootstrap::meet(id, "world", milliseconds(1)).ok(), "it has met");
    for (size_t left = 0; left < 4; ++left) {
      auto ballast = take_descriptors(256, left);
      const auto met = Bootstrap::meet(id, "world", milliseconds(1));
      ballast.clear();
      expect(!met.ok(), "it has met");
      expect(is_empty(place.path()), "left with " + std::to_string(left) + " descriptors");
    }
    id.rendezvous = "/proc/none";
    expect_no_meeting(id, milliseconds(20'000), Code::kSystem,
                      {"cannot create the rendezvous directory /proc/none: No such"});
  }));
}

TEST_CASE("a world of one opens nothing", "[bootstrap]") {
  Bootstrap met = must_meet(Identity{}, kShort);
  REQUIRE(met.barrier().ok());
  REQUIRE(met.all_gather("mine")->at(0).bytes == "mine");
  REQUIRE_FALSE(all_gather_fds(met, 0)->at(0).valid());
}

TEST_CASE("more descriptors than one message carries", "[bootstrap]") {
  constexpr int kRanks = 260;
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  TempDirectory place;
  testing::require_all_ok(testing::run_ranks(
      How::kForks, kRanks,
      [&](int rank) {
        Bootstrap b = must_meet(identity(rank, kRanks, place), milliseconds(60'000));
        UniqueFd own = tagged_file(rank);
        auto fds = all_gather_fds(b, own.get());
        expect_ok(fds.status());
        for (int i = 0; i < kRanks; ++i) {
          if (i != rank) expect_tag((*fds)[static_cast<size_t>(i)], i);
        }
      },
      std::chrono::seconds(90)));
}

TEST_CASE("one descriptor for each peer process, however many communicators there are",
          "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(3, [&](int rank, Link& link) {
    std::vector<Bootstrap> all;
    for (int i = 0; i < 5; ++i) {
      all.push_back(must_meet(identity(rank, 3, place), kLong, "world." + std::to_string(i)));
      expect_ok(all.back().barrier());
      all.back().close_sockets();
      expect_eq(count_pidfds(getpid()), 2, "pidfds");
    }
    all.erase(all.begin(), all.end() - 1);
    expect_eq(count_pidfds(getpid()), 2, "pidfds");
    link.announce("ready");
    link.await("it has ended");
    // The handle is the first communicator's, which has gone.
    expect_eq(all.back().find_dead(), 1, "find_dead");
    all.clear();
    expect_eq(count_pidfds(getpid()), 0, "pidfds");
    link.announce("found");
    link.await("leave");
  });
  for (int rank : {0, 1, 2}) gang.await(rank, "ready");
  gang.kill(1, SIGKILL);
  gang.await_end(1);
  tell_all(gang, {0, 2}, "it has ended");
  for (int rank : {0, 2}) gang.await(rank, "found");
  tell_all(gang, {0, 2}, "leave");
  require_others_ok(gang, 1);
}

TEST_CASE("missing ranks are named on every rank that came, and before that by rank 0 alone",
          "[bootstrap]") {
  for (How how : {How::kForks, How::kThreads}) {
    const TempDirectory place, other;
    const std::string said = other.path() + "/said";
    testing::require_all_ok(testing::run_ranks(how, 2, [&](int rank) {
      if (how == How::kForks) {
        expect(std::freopen(said.c_str(), "a", stderr) != nullptr, "stderr to a file");
      }
      expect_no_meeting(identity(rank, 4, place), kMedium, Code::kBootstrap,
                        {"ranks 2 and 3 of 4 did not come within 3 s;", place.path()});
    }));
    REQUIRE(is_empty(place.path()));
    if (how != How::kForks) continue;
    // At a third of the deadline.
    std::ifstream file(said);
    std::string line;
    REQUIRE(std::getline(file, line));
    CHECK_THAT(line, testing::contains("ranks 2 and 3 of 4 did not come within "));
    CHECK_THAT(line, testing::contains("rank 0 waits at " + place.path()));
    CHECK_THAT(line, testing::contains(" for 3 s in all (RONDO_BOOTSTRAP_TIMEOUT"));
    CHECK_FALSE(std::getline(file, line));
  }
}

TEST_CASE("the most impatient rank's deadline holds for all", "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(3, [&](int rank, Link& link) {
    if (rank == 1) link.await("go");
    expect_no_meeting(identity(rank, 4, place), rank == 1 ? kMedium : kLong, Code::kBootstrap,
                      {"rank 3 of 4 did not come within 3 s (rank 1's limit)"});
  });
  await_guests(gang, 1);
  gang.tell(1, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("a missing rank 0 is named", "[bootstrap]") {
  TempDirectory place;
  testing::require_all_ok(testing::run_ranks(How::kForks, 2, [&](int i) {
    expect_no_meeting(identity(i + 1, 3, place), kShort, Code::kBootstrap,
                      {"rank 0 of 3 did not come within 0.7 s"});
  }));
}

TEST_CASE("a rank given twice is named on every rank", "[bootstrap]") {
  for (int twice : {0, 1, 2}) {
    TempDirectory place;
    ForkGang gang(4, [&](int i, Link& link) {
      if (i == 3) link.await("go");
      expect_no_meeting(identity(i == 3 ? twice : i, 4, place), kLong, Code::kBootstrap,
                        {"rank " + std::to_string(twice) + " was given twice: to pid "});
    });
    await_guests(gang, 2);
    gang.tell(3, "go");
    testing::require_all_ok(gang.join());
  }
}

TEST_CASE("ranks that disagree about the world's size all hear of it", "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(3, [&](int rank, Link& link) {
    if (rank == 2) link.await("go");
    expect_no_meeting(identity(rank, rank == 2 ? 5 : 4, place), kLong, Code::kBootstrap,
                      {"says that there are 5 ranks, rank 0 says 4"});
  });
  await_guests(gang, 1);
  gang.tell(2, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("a rank with another secret is refused and the job goes on", "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(4, [&](int i, Link& link) {
    if (i == 3) {
      expect_no_meeting(identity(1, 3, place, "guess"), kLong, Code::kBootstrap, {"RONDO_SECRET"});
      return link.announce("refused");
    }
    if (i == 1) link.await("go");
    exchange_everything(i, 3, place, "world");
  });
  gang.await(3, "refused");
  gang.tell(1, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("names that could leave the directory are refused", "[bootstrap]") {
  TempDirectory place;
  for (const std::string name : {"", "../x", "a/b", ".hidden", "sp ace"}) {
    const Status status = Bootstrap::meet(identity(0, 2, place), name, kShort).status();
    REQUIRE(status.code() == Code::kInvalidArgument);
    REQUIRE_THAT(status.message(), testing::contains('"' + name + '"'));
  }
  const auto met = Bootstrap::meet({}, "\x1b" + std::string(5000, 'x'), kShort);
  REQUIRE_THAT(met.status().message(), testing::contains("\"?xxx"));
  REQUIRE(met.status().message().size() < 300);
}

TEST_CASE("a directory that others may enter is refused", "[bootstrap]") {
  TempDirectory place;
  REQUIRE(chmod(place.path().c_str(), 0755) == 0);
  for (int rank : {0, 1}) {
    expect_no_meeting(identity(rank, 2, place), kShort, Code::kBootstrap, {"0755"});
  }
}

TEST_CASE("another user's folder where rondo's own should be is named on every rank",
          "[bootstrap]") {
  if (geteuid() != 0) {
    WARN("not root: cannot make another user's folder");
    return;
  }
  TempDirectory place;
  const std::string folder = place.path() + "/rondo-0";  // as /tmp/rondo-UID
  REQUIRE(mkdir(folder.c_str(), 0700) == 0);
  REQUIRE(mkdir((folder + "/job").c_str(), 0700) == 0);
  const auto refused = [&](const std::string& part) {
    for (int rank : {0, 1}) {
      Identity id = identity(rank, 2, place);
      id.rendezvous = folder + "/job";
      expect_no_meeting(id, kLong, Code::kBootstrap, {folder + part});
    }
  };
  REQUIRE(chown(folder.c_str(), 65534, 65534) == 0);
  refused(" belongs to uid 65534");
  REQUIRE(chown(folder.c_str(), 0, 0) == 0);
  REQUIRE(chmod(folder.c_str(), 0777) == 0);
  refused(" belongs to uid 0 or can be written by others");
  // A link to a folder of our own can be bent to another place at any time.
  REQUIRE(rename(folder.c_str(), (place.path() + "/other").c_str()) == 0);
  REQUIRE(chmod((place.path() + "/other").c_str(), 0700) == 0);
  REQUIRE(symlink((place.path() + "/other").c_str(), folder.c_str()) == 0);
  refused(" belongs to uid 0");
}

/// A rank 0 that is killed while it waits.
void kill_rank_0(const Identity& id) {
  ForkGang gang(1, [&](int, Link&) { (void)Bootstrap::meet(id, "world", kLong); });
  await_in(gang, [&] { return std::filesystem::exists(id.rendezvous + "/world.sock"); });
  gang.kill(0, SIGKILL);
  require_others_ok(gang, 0);
  REQUIRE_FALSE(is_empty(id.rendezvous));
}

TEST_CASE("what a killed rank 0 left behind does not stop the next job", "[bootstrap]") {
  TempDirectory place;
  kill_rank_0(identity(0, 3, place));
  testing::require_all_ok(testing::run_ranks(
      How::kForks, 3, [&](int rank) { exchange_everything(rank, 3, place, "world"); }));
  REQUIRE(is_empty(place.path()));
}

TEST_CASE("what a killed rank 0 left in /tmp goes with the user's next job, and nothing else does",
          "[bootstrap]") {
  TempDirectory place;
  const std::string own = place.path() + "/rondo-" + std::to_string(geteuid());
  const auto at = [&](int rank, const std::string& job) {
    Identity id = identity(rank, 2, place);
    id.rendezvous = own + "/" + job;
    return id;
  };
  const auto waits = [&] { return std::filesystem::exists(own + "/waiting/world.sock"); };
  kill_rank_0(at(0, "killed"));
  // One that still waits, one that comes, and then those whom the first has waited for.
  ForkGang gang(4, [&](int i, Link& link) {
    if (i != 0) link.await("go");
    (void)must_meet(at(i / 2, i % 2 == 0 ? "waiting" : "next"));
  });
  await_in(gang, waits);
  tell_all(gang, {1, 3}, "go");
  for (int i : {1, 3}) gang.await_end(i);
  REQUIRE_FALSE(std::filesystem::exists(own + "/killed"));
  REQUIRE(waits());
  gang.tell(2, "go");
  testing::require_all_ok(gang.join());
  REQUIRE(is_empty(own));
}

TEST_CASE("a rank killed at any exchange is named on all others", "[bootstrap]") {
  for (int victim : {0, 1, 2}) {
    for (int at = 0; at < 4; ++at) {
      TempDirectory place;
      ForkGang gang(3, [&](int rank, Link& link) {
        Bootstrap b = must_meet(identity(rank, 3, place));
        const std::function<Status()> steps[] = {
            [&] { return b.barrier(); },
            [&] { return b.all_gather(std::string(100'000, 'x')).status(); },
            [&] { return all_gather_fds(b, STDERR_FILENO).status(); },
            [&] { return broadcast_fd(b, rank == 0 ? STDERR_FILENO : -1).status(); }};
        for (int i = 0; i < at; ++i) expect_ok(steps[i]());
        if (rank == victim) {
          link.announce("ready");
          link.await("never");
        }
        Status status = steps[at]();
        expect_failure(status, Code::kPeerDied, {"rank " + std::to_string(victim) + " (pid "});
        expect_eq(b.barrier().to_string(), status.to_string(), "the failure sticks");
        link.await("it has ended");
        // Processes are watched from the first exchange on.
        if (at > 0) expect_eq(b.find_dead(), victim, "find_dead");
        link.announce("found");
        link.await("leave");
      });
      INFO("victim " << victim << " at exchange " << at);
      gang.await(victim, "ready");
      gang.kill(victim, SIGKILL);
      gang.await_end(victim);
      const int one = (victim + 1) % 3, other = (victim + 2) % 3;
      tell_all(gang, {one, other}, "it has ended");
      for (int rank : {one, other}) gang.await(rank, "found");
      tell_all(gang, {one, other}, "leave");
      require_others_ok(gang, victim);
    }
  }
}

TEST_CASE("a rank killed while the ranks still meet is named", "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(3, [&](int rank, Link&) {
    expect_no_meeting(identity(rank, 4, place), kLong, Code::kPeerDied, {"rank 1 (pid "});
  });
  await_guests(gang, 2);
  gang.kill(1, SIGKILL);
  require_others_ok(gang, 1);
}

TEST_CASE("a rank that gives up tells why", "[bootstrap]") {
  for (int who : {0, 2}) {
    TempDirectory place;
    testing::require_all_ok(testing::run_ranks(How::kForks, 3, [&](int rank) {
      Bootstrap b = must_meet(identity(rank, 3, place));
      if (rank == who) b.fail(Status(Code::kResourceExhausted, "no memory for the segment"));
      const std::string text = "no memory for the segment";
      expect_failure(b.barrier(), Code::kResourceExhausted, {text});
      const std::string whose = rank == who ? "" : "rank " + std::to_string(who) + ": ";
      expect_failure(b.barrier(), Code::kResourceExhausted, {whose + text});
    }));
  }
}

TEST_CASE("ranks at different exchanges are named", "[bootstrap]") {
  TempDirectory place;
  testing::require_all_ok(testing::run_ranks(How::kForks, 3, [&](int rank) {
    Bootstrap b = must_meet(identity(rank, 3, place));
    const Status status = rank == 2 ? b.all_gather("x").status() : b.barrier();
    expect_failure(status, Code::kMismatch, {"rank 2 (pid ", "is at all_gather"});
  }));
}

TEST_CASE("a stopped rank is named at the deadline", "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(3, [&](int rank, Link& link) {
    Bootstrap b = must_meet(identity(rank, 3, place), kMedium);
    link.announce("met");
    link.await("go");
    expect_failure(b.barrier(), Code::kTimeout,
                   {"rank 2 of 3 did not reach the bootstrap's barrier"});
  });
  for (int rank : {0, 1, 2}) gang.await(rank, "met");
  gang.kill(2, SIGSTOP);
  tell_all(gang, {0, 1}, "go");
  // The two that wait end first; then the third may be ended.
  for (int rank : {0, 1}) gang.await_end(rank);
  gang.kill(2, SIGKILL);
  require_others_ok(gang, 2);
}

// Not under UBSan, which takes objects for broken whose type it cannot look up: that takes a
// descriptor of its own.
TEST_CASE("no descriptor left: an error with the limit and whose it is, on every rank",
          "[bootstrap][again]") {
  for (const int poor : {0, 1}) {
    TempDirectory place;
    testing::require_all_ok(testing::run_ranks(How::kForks, 3, [&](int rank) {
      Bootstrap b = must_meet(identity(rank, 3, place));
      UniqueFd own = tagged_file(rank);
      std::vector<UniqueFd> taken;
      if (rank == poor) taken = take_descriptors(64, 0);
      Status status = all_gather_fds(b, own.get()).status();
      // A rank that already had its descriptors gets the error at the next exchange.
      if (status.ok()) status = b.barrier();
      const bool says_whose = rank != poor || poor == 0;
      const std::string whose = "rank " + std::to_string(poor) + ": receiving from rank ";
      expect_failure(status, Code::kResourceExhausted,
                     {"RLIMIT_NOFILE is 64", says_whose ? whose : ""});
    }));
  }
}

TEST_CASE("rank 0 has no descriptor to watch another rank: every rank hears that it is rank 0",
          "[bootstrap]") {
  TempDirectory place;
  ForkGang gang(3, [&](int rank, Link& link) {
    // A directory, its lock and a listening socket; rank 1 and its pidfd, the socket of rank 2.
    std::vector<UniqueFd> taken;
    if (rank == 0) taken = take_descriptors(64, 6);
    if (rank == 2) link.await("go");
    expect_no_meeting(identity(rank, 3, place), kLong, Code::kResourceExhausted,
                      {"rank 0: cannot watch rank 2", "RLIMIT_NOFILE is 64"});
  });
  await_guests(gang, 1);
  gang.tell(2, "go");
  testing::require_all_ok(gang.join());
}

}  // namespace
}  // namespace rondo
