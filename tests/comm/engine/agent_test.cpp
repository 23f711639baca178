// Agents over socket pairs: what happens on one host's board is soon on the others', one error is
// everybody's, and hosts that end, or are silent, are noticed.
#include "comm/control/agent.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/base/clock.hpp"
#include "comm/bootstrap/session/star.hpp"
#include "tests/comm/engine/board_memory.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"

namespace rondo::comm {
namespace {

using board::Life;
using std::chrono::milliseconds;
using testing::contains;

Connection connection_over(transport::UniqueFd fd) {
  Connection connection(std::move(fd));
  connection.trust(kMaxBlobBytes);
  return connection;
}

PeerConnection line_to(int rank, transport::UniqueFd fd) {
  PeerConnection line{.rank = rank};
  line.connection = connection_over(std::move(fd));
  return line;
}

/// Both ends of a new connection.
std::array<transport::UniqueFd, 2> connected() {
  int ends[2] = {-1, -1};
  (void)socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends);
  return {transport::UniqueFd(ends[0]), transport::UniqueFd(ends[1])};
}

/// One rank on each host. Rank 0's host is "h0".
board::Places places(int hosts) {
  board::Places places;
  std::vector<int> labels;
  for (int h = 0; h < hosts; ++h) {
    labels.push_back(h);
    places.names.push_back("h" + std::to_string(h));
  }
  places.hosts = base::HostMap(labels);
  return places;
}

/// Between the agents of several hosts: makes new socket pairs, and knows whose process has ended.
class Exchange {
 public:
  std::atomic<bool> connects{true};
  std::atomic<int> made{0};

  void end(int rank) {
    const std::lock_guard lock(mutex_);
    ended_[rank] = true;
  }
  bool has_ended(int rank) {
    const std::lock_guard lock(mutex_);
    return ended_[rank];
  }
  /// One end of the pair between rank 0's host and `host`, once both have asked for it.
  std::optional<Connection> ask(int host, bool is_hub) {
    const std::lock_guard lock(mutex_);
    Pair& pair = pairs_[host];
    pair.wanted[is_hub] = true;
    if (!connects || ended_[0] || ended_[host] || !pair.wanted[0] || !pair.wanted[1]) return {};
    if (!pair.ends[is_hub].valid()) {
      pair.ends = connected();
      ++made;
    }
    Connection connection = connection_over(std::move(pair.ends[is_hub]));
    if (!pair.ends[!is_hub].valid()) pair.wanted[0] = pair.wanted[1] = false;
    return connection;
  }

 private:
  struct Pair {
    bool wanted[2] = {};
    std::array<transport::UniqueFd, 2> ends;
  };
  std::mutex mutex_;
  std::map<int, Pair> pairs_;
  std::map<int, bool> ended_;
};

class FromExchange final : public Reconnector {
 public:
  FromExchange(Exchange& exchange, int own) : exchange_(exchange), own_(own) {}
  std::optional<Connection> reconnect(int rank) override {
    return exchange_.ask(own_ == 0 ? rank : own_, own_ == 0);
  }
  bool has_ended(int rank) override { return exchange_.has_ended(rank); }
  void give_up(int /*rank*/) override {}

 private:
  Exchange& exchange_;
  const int own_;
};

/// One rank on each of `hosts` hosts, with a board and an agent. The test itself is the agent of host
/// `played`, if there is one.
class Hosts {
 public:
  explicit Hosts(int hosts, milliseconds silence = milliseconds(5000), int played = -1)
      : dead_(hosts) {
    std::vector<std::vector<PeerConnection>> lines(static_cast<size_t>(hosts));
    for (int h = 0; h < hosts; ++h) {
      memory_.emplace_back(hosts);
      boards_.push_back(
          std::make_unique<board::Board>(memory_.back().base(), hosts, h, "", places(hosts)));
      if (h == 0) continue;
      auto [hub, spoke] = connected();
      far_ends_.push_back(spoke.get());
      lines[0].push_back(line_to(h, std::move(hub)));
      lines[static_cast<size_t>(h)].push_back(line_to(0, std::move(spoke)));
    }
    for (int h = 0; h < hosts; ++h) {
      std::vector<PeerConnection>& own = lines[static_cast<size_t>(h)];
      if (h == played) other_ = std::move(own[0].connection);
      std::unique_ptr<Agent>& agent = agents_.emplace_back();
      if (h == played) continue;
      agent = std::make_unique<Agent>(
          at(h), std::move(own),
          [this, h](int first) { return first <= h && dead_[static_cast<size_t>(h)] ? h : -1; },
          std::make_unique<FromExchange>(exchange, h), silence);
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
  bool has_verdict(int h) const { return memory_[static_cast<size_t>(h)].has_verdict(); }
  void die(int h) { dead_[static_cast<size_t>(h)] = true; }
  /// As a middlebox may do, and the kernel when the process of the agent ends.
  void close_line(int h) { shutdown(far_ends_[static_cast<size_t>(h) - 1], SHUT_RDWR); }

  Exchange exchange;
  const int64_t began_ns = base::now_ns();

 protected:
  Connection other_;  // of the played host

 private:
  std::vector<board::BoardMemory> memory_;
  std::vector<std::unique_ptr<board::Board>> boards_;
  std::vector<std::atomic<bool>> dead_;
  std::vector<int> far_ends_;
  std::vector<std::unique_ptr<Agent>> agents_;
};

/// Host `own` of two. The test is the other one's agent.
class OneOfTwo : public Hosts {
 public:
  OneOfTwo(int own, milliseconds silence) : Hosts(2, silence, 1 - own), board(at(own)) {}

  /// Sends bytes that no agent sends, as a device that alters frames.
  void garble() { REQUIRE(write(other_.fd(), "nonsense that is no frame", 25) == 25); }
  void shut() { other_.close(); }
  /// This test's end of a new connection.
  bool connects_again() {
    auto made = exchange.ask(1, false);
    if (made) other_ = std::move(*made);
    return made.has_value();
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

  board::Board& board;
};

/// Whether it becomes true, which takes three seconds at most on an idle machine.
bool soon(const std::function<bool()>& condition) {
  const int64_t until = base::now_ns() + 30'000'000'000;
  while (base::now_ns() < until) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

bool is(const board::Board& board, int rank, Life life) {
  return board.state(rank).life.load() == static_cast<uint32_t>(life);
}

/// On all of three hosts.
void check_error(Hosts& hosts, const Status& error) {
  for (int h = 0; h < 3; ++h) {
    INFO("host " << h);
    CHECK(soon([&] { return hosts.at(h).has_error(); }));
    CHECK(hosts.at(h).error().to_string() == error.to_string());
  }
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
    CHECK(soon([&] { return hosts.at(0).has_error(); }));
    check_error(hosts, hosts.at(0).error());
  }
}

TEST_CASE("an error that a host's ranks report without a verdict is every other host's, too") {
  for (const int first : {0, 1, 2}) {
    Hosts hosts(3);
    const Status aborted(Code::kAborted, "it aborted");
    hosts.at(first).propose(aborted);
    // As a rank there does where the agent stands still for long (Board::error).
    board::Mirror(hosts.at(first))
        .decide({.finder = static_cast<uint32_t>(first), .status = aborted});
    check_error(hosts, aborted);
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

TEST_CASE("the proved end of an agent's process is its rank's death, and leaves others a verdict") {
  Hosts hosts(3);
  hosts.exchange.end(2);
  hosts.close_line(2);  // maybe before a row of it has come to the others
  CHECK(soon([&] { return is(hosts.at(0), 2, Life::kDead); }));
  CHECK(soon([&] { return is(hosts.at(1), 2, Life::kDead); }));
  CHECK_FALSE(is(hosts.at(1), 0, Life::kDead));
  // The process with the agent of rank 0 ends, too: then host 1 decides alone.
  hosts.exchange.end(0);
  hosts.close_line(1);
  CHECK(soon([&] { return is(hosts.at(1), 0, Life::kDead); }));
  hosts.at(1).propose({Code::kPeerDied, "rank 0 ended"});
  CHECK(soon([&] { return hosts.has_verdict(1); }));
  CHECK(hosts.at(1).error().message() == "rank 0 ended");
}

TEST_CASE("a lost connection is made again, and nothing that was to travel on it is lost") {
  Hosts hosts(3);
  for (int h = 1; h < 3; ++h) {
    CHECK(
        soon([&] { return is(hosts.at(0), h, Life::kAlive) && is(hosts.at(h), 0, Life::kAlive); }));
  }
  hosts.exchange.connects = false;
  hosts.close_line(2);
  hosts.at(2).state(2).heartbeat.store(77);
  hosts.at(2).propose({Code::kMismatch, "they disagree"});
  std::this_thread::yield();
  CHECK(is(hosts.at(0), 2, Life::kAlive));
  CHECK(is(hosts.at(2), 0, Life::kAlive));
  hosts.exchange.connects = true;
  CHECK(soon([&] { return hosts.at(1).state(2).heartbeat.load() == 77; }));
  check_error(hosts, {Code::kMismatch, "they disagree"});
  for (int h = 0; h < 3; ++h) {
    for (int rank = 0; rank < 3; ++rank) CHECK(is(hosts.at(h), rank, Life::kAlive));
  }
  CHECK(hosts.exchange.made == 1);
}

TEST_CASE("bytes that no agent sends cost the connection, and no rank its life") {
  OneOfTwo here(0, milliseconds(30'000));
  CHECK(soon([&] { return here.hears('R', ""); }));
  here.garble();
  CHECK(soon([&] { return here.connects_again(); }));
  CHECK(soon([&] { return here.hears('R', ""); }));
  CHECK_FALSE(is(here.board, 1, Life::kDead));
  CHECK_FALSE(here.board.has_error());
}

TEST_CASE("a silent host, or one whose connection does not come back, is lost, and not dead") {
  for (const bool shuts : {false, true}) {
    OneOfTwo here(0, milliseconds(300));  // the other host's agent never speaks
    if (shuts) here.shut();
    CHECK(soon([&] { return here.board.has_error(); }));
    CHECK(base::now_ns() - here.began_ns >= 300'000'000);
    const std::string message = here.board.error().message();
    CHECK_THAT(message, contains("host h1 with rank 1 has not answered host h0 for "));
    CHECK((message.find("the connection was lost") != message.npos) == shuts);
    CHECK(soon([&] { return is(here.board, 1, Life::kLost); }));
  }
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
    here.board.post(at, board::all_reduce_call(at), {}, {});
  }
  here.board.state(0).waiting_since_ns.store(base::now_ns() - 1'000'000'000);
  here.board.state(0).waiting_for.store(1);
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
  here.board.state(0).waiting_for.store(-1);
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
  here.leave(1);
  CHECK(soon([&] { return here.is_closed(); }));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_CASE("an error that a host decides on alone reaches rank 0's host when that answers again") {
  OneOfTwo here(1, milliseconds(30'000));  // rank 0's process is stopped
  CHECK(soon([&] { return base::now_ns() - here.began_ns > 2'000'000'000; }));
  here.board.propose({Code::kAborted, "rank 1 aborted"});
  CHECK(here.board.error().message() == "rank 1 aborted");
  CHECK(soon([&] { return here.hears('E', "rank 1 aborted"); }));
}

}  // namespace rondo::comm
