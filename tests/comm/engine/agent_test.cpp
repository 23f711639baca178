// Agents over socket pairs: what happens on one host's board is soon on the others', one error is
// everybody's, and hosts that end, or are silent, are noticed.
#include "comm/control/agent.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/base/clock.hpp"
#include "comm/bootstrap/star.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"

namespace rondo::comm {
namespace {

using board::Life;
using std::chrono::milliseconds;

struct FreeMemory {
  void operator()(std::byte* base) const { std::free(base); }
};

PeerConnection line_to(int rank, int fd) {
  PeerConnection line{.rank = rank};
  line.connection = Connection(transport::UniqueFd(fd));
  line.connection.trust(kMaxBlobBytes);
  return line;
}

/// One rank on each of `hosts` hosts, with a board and an agent. Rank 0's host is "h0".
class Hosts {
 public:
  explicit Hosts(int hosts, milliseconds silence = milliseconds(5000)) : dead_(hosts) {
    const size_t bytes = (board::Board::bytes_needed(hosts) + 127) / 128 * 128;
    std::vector<int> labels;
    board::Places places;
    for (int h = 0; h < hosts; ++h) {
      labels.push_back(h);
      places.names.push_back("h" + std::to_string(h));
    }
    places.hosts = base::HostMap(labels);
    std::vector<std::vector<PeerConnection>> lines(static_cast<size_t>(hosts));
    for (int h = 1; h < hosts; ++h) {
      int ends[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
      lines[0].push_back(line_to(h, ends[0]));
      lines[static_cast<size_t>(h)].push_back(line_to(0, ends[1]));
      far_ends_.push_back(ends[1]);
    }
    for (int h = 0; h < hosts; ++h) {
      memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(128, bytes)));
      std::memset(memory_.back().get(), 0, bytes);
      boards_.push_back(std::make_unique<board::Board>(memory_.back().get(), hosts, h, "", places));
    }
    for (int h = 0; h < hosts; ++h) {
      const auto at = static_cast<size_t>(h);
      agents_.push_back(std::make_unique<Agent>(
          *boards_[at], std::move(lines[at]),
          [this, h](int first) { return first <= h && dead_[static_cast<size_t>(h)] ? h : -1; },
          silence));
    }
  }
  ~Hosts() { leave_all(); }

  /// As communicators do when they are destroyed.
  void leave(int h) {
    if (!agents_[static_cast<size_t>(h)]) return;
    at(h).state(h).life.store(static_cast<uint32_t>(Life::kGone));
    agents_[static_cast<size_t>(h)].reset();
  }
  void leave_all() {
    std::vector<std::thread> leaving;
    for (int h = 0; h < static_cast<int>(agents_.size()); ++h) {
      leaving.emplace_back([this, h] { leave(h); });
    }
    for (std::thread& thread : leaving) thread.join();
  }
  board::Board& at(int h) { return *boards_[static_cast<size_t>(h)]; }
  void die(int h) { dead_[static_cast<size_t>(h)] = true; }
  /// The process with the agent ends: the kernel closes its sockets.
  void close_line(int h) { shutdown(far_ends_[static_cast<size_t>(h) - 1], SHUT_RDWR); }

 private:
  std::vector<std::unique_ptr<std::byte, FreeMemory>> memory_;
  std::vector<std::unique_ptr<board::Board>> boards_;
  std::vector<std::atomic<bool>> dead_;
  std::vector<int> far_ends_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

/// Host `own` of two with a rank each, "h0" and "h1": its board and agent. The test is the other one's
/// agent.
class OneOfTwo {
 public:
  OneOfTwo(int own, milliseconds silence) {
    const size_t bytes = (board::Board::bytes_needed(2) + 127) / 128 * 128;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(128, bytes)));
    std::memset(memory_.get(), 0, bytes);
    board = std::make_unique<board::Board>(
        memory_.get(), 2, own, "",
        board::Places{.hosts = base::HostMap({0, 1}), .names = {"h0", "h1"}});
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    other_ = Connection(transport::UniqueFd(ends[1]));
    other_.trust(kMaxBlobBytes);
    std::vector<PeerConnection> lines;
    lines.push_back(line_to(1 - own, ends[0]));
    agent_ = std::make_unique<Agent>(
        *board, std::move(lines), [](int) { return -1; }, silence);
  }
  ~OneOfTwo() { end_agent(); }
  void end_agent() {
    board->state(board->rank()).life.store(static_cast<uint32_t>(Life::kGone));
    agent_.reset();
  }
  /// The next message that has come; empty: none.
  std::string next() {
    auto received = other_.try_receive();
    return received.ok() && *received ? (*received)->frame.payload : std::string();
  }
  /// Whether such a message has come.
  bool hears(char kind, const std::string& part) {
    for (std::string message = next(); !message.empty(); message = next()) {
      if (message[0] == kind && message.find(part) != std::string::npos) return true;
    }
    return false;
  }

  /// Whether this host's agent has closed its end.
  bool is_closed() {
    auto received = other_.try_receive();
    return !received.ok() && received.status().code() == Code::kPeerDied;
  }

  const int64_t began_ns = base::now_ns();
  std::unique_ptr<board::Board> board;

 private:
  std::unique_ptr<std::byte, FreeMemory> memory_;
  Connection other_;
  std::unique_ptr<Agent> agent_;
};

/// Whether it becomes true within five seconds.
bool soon(const std::function<bool()>& condition) {
  const int64_t until = base::now_ns() + 5'000'000'000;
  while (base::now_ns() < until) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

board::Call call_of(uint64_t count) {
  return {.collective = Collective::kAllReduce,
          .type = DataType::kFloat32,
          .op = ReduceOp::kSum,
          .algorithm = Algorithm::kAuto,
          .root = 0,
          .count = count};
}

bool is(const board::Board& board, int rank, Life life) {
  return board.state(rank).life.load() == static_cast<uint32_t>(life);
}

}  // namespace

TEST_CASE("every host's rows come to every host, and often while a rank waits") {
  Hosts hosts(3);
  for (int h = 0; h < 3; ++h) {
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(soon([&] { return is(hosts.at(h), rank, Life::kAlive); }));
    }
  }
  // A rank of the last host waits: all rows are fresh, although nothing else has happened.
  hosts.at(2).state(2).waiting_since_ns.store(base::now_ns() - 1'000'000'000);
  hosts.at(2).state(2).waiting_for.store(1);
  const int64_t began = base::now_ns();
  for (uint64_t beat = 1; beat <= 10; ++beat) {
    hosts.at(1).state(1).heartbeat.store(beat);
    CHECK(soon([&] { return hosts.at(2).state(1).heartbeat.load() == beat; }));
  }
  // The rows of quiet hosts would take a second each time.
  CHECK(base::now_ns() - began < 6'000'000'000);
  CHECK(soon([&] { return hosts.at(0).state(2).waiting_for.load() == 1; }));
  hosts.at(2).state(2).waiting_for.store(-1);
}

TEST_CASE("an error of any host is soon every host's, and of two one holds") {
  for (const int first : {0, 1, 2}) {
    Hosts hosts(3);
    hosts.at(first).propose({Code::kMismatch, "they disagree"});
    hosts.at((first + 1) % 3).propose({Code::kTimeout, "a stall"});
    std::vector<Status> all(3);
    for (int h = 0; h < 3; ++h) {
      CHECK(soon([&] { return hosts.at(h).has_error(); }));
      all[static_cast<size_t>(h)] = hosts.at(h).error();
    }
    CHECK(all[0].to_string() == all[1].to_string());
    CHECK(all[0].to_string() == all[2].to_string());
  }
}

TEST_CASE("a rank that leaves, and one that ends, are seen by all") {
  Hosts hosts(3);
  CHECK(soon([&] { return is(hosts.at(0), 2, Life::kAlive) && is(hosts.at(2), 1, Life::kAlive); }));
  hosts.leave(1);
  CHECK(soon([&] { return is(hosts.at(0), 1, Life::kGone); }));
  CHECK(soon([&] { return is(hosts.at(2), 1, Life::kGone); }));
  hosts.die(2);
  CHECK(soon([&] { return is(hosts.at(0), 2, Life::kDead); }));
  CHECK_FALSE(hosts.at(0).has_error());
}

TEST_CASE("the end of an agent's process is its rank's death, and leaves the others a verdict") {
  Hosts hosts(3);
  CHECK(soon([&] { return is(hosts.at(0), 2, Life::kAlive) && is(hosts.at(1), 2, Life::kAlive); }));
  hosts.close_line(2);
  CHECK(soon([&] { return is(hosts.at(0), 2, Life::kDead); }));
  CHECK(soon([&] { return is(hosts.at(1), 2, Life::kDead); }));
  CHECK(is(hosts.at(1), 0, Life::kAlive));
  // On its own host, rank 0 seems to have ended; it decides alone now.
  CHECK(soon([&] { return is(hosts.at(2), 0, Life::kDead); }));
  hosts.at(2).propose({Code::kPeerDied, "rank 0 ended"});
  const int64_t began = base::now_ns();
  CHECK(hosts.at(2).error().message() == "rank 0 ended");
  CHECK(base::now_ns() - began < 1'500'000'000);
}

TEST_CASE("a silent host is an error that names its ranks") {
  OneOfTwo here(0, milliseconds(300));  // the other host's agent never speaks
  CHECK(soon([&] { return here.board->has_error(); }));
  CHECK(base::now_ns() - here.began_ns >= 300'000'000);
  CHECK_THAT(here.board->error().message(),
             testing::contains("host h1 with rank 1 has not answered host h0 for 0.3"));
}

TEST_CASE("hosts that are quiet are not silent, however short that may be") {
  Hosts hosts(2, milliseconds(1000));
  for (uint64_t beat = 1; beat <= 4; ++beat) {  // rows of ranks none of which waits
    hosts.at(1).state(1).heartbeat.store(beat);
    CHECK(soon([&] { return hosts.at(0).state(1).heartbeat.load() == beat; }));
  }
  CHECK_FALSE(hosts.at(0).has_error());
  CHECK_FALSE(hosts.at(1).has_error());
}

TEST_CASE("while ranks wait, operations that the other hosts know do not travel again") {
  OneOfTwo here(0, milliseconds(30'000));
  for (uint64_t at = 1; at <= board::kHistory; ++at) {
    here.board->post(at, call_of(at), {}, {});
  }
  here.board->state(0).waiting_since_ns.store(base::now_ns() - 1'000'000'000);
  here.board->state(0).waiting_for.store(1);
  size_t whole = 0, last = 0, rows = 0;
  CHECK(soon([&] {
    for (std::string message = here.next(); !message.empty(); message = here.next()) {
      if (message[0] != 'R') continue;
      last = message.size();
      whole = std::max(whole, last);
      ++rows;
    }
    return rows > 10;
  }));
  CHECK(whole > board::kHistory * 48);
  CHECK(last < 256);
  here.board->state(0).waiting_for.store(-1);
}

TEST_CASE("a forked child does not hide the end of its parent from other hosts") {
  OneOfTwo here(1, milliseconds(30'000));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pause();
    _exit(0);
  }
  REQUIRE(child > 0);
  here.end_agent();
  CHECK(soon([&] { return here.is_closed(); }));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("an error that a host's ranks report without a verdict is every other host's, too") {
  for (const int first : {0, 1, 2}) {
    INFO("host " << first);
    Hosts hosts(3);
    const Status aborted(Code::kAborted, "it aborted");
    hosts.at(first).propose(aborted);
    // As a rank there does where the agent stands still for long (Board::error).
    board::Mirror(hosts.at(first))
        .decide({.finder = static_cast<uint32_t>(first), .status = aborted});
    for (int h = 0; h < 3; ++h) {
      CHECK(soon([&] { return hosts.at(h).has_error(); }));
      CHECK(hosts.at(h).error().to_string() == aborted.to_string());
    }
  }
}

TEST_CASE("an error that a host decides on alone reaches rank 0's host when that answers again") {
  OneOfTwo here(1, milliseconds(30'000));  // rank 0's process is stopped
  CHECK(soon([&] { return base::now_ns() - here.began_ns > 2'000'000'000; }));
  here.board->propose({Code::kAborted, "rank 1 aborted"});
  CHECK(here.board->error().message() == "rank 1 aborted");
  CHECK(soon([&] { return here.hears('E', "rank 1 aborted"); }));
}

}  // namespace rondo::comm
