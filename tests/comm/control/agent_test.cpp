// The agent of rank 0's host, with the agents of two other hosts played by the test: what it sends, and
// how often it wakes.
#include "comm/control/agent.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "comm/base/clock.hpp"
#include "comm/bootstrap/session/star.hpp"
#include "tests/harness/catch.hpp"

namespace rondo {
namespace {

using board::Board;
using comm::Connection;
using comm::FrameKind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;  // one on each host

board::Places places() {
  return {.hosts = base::HostMap(std::vector<int>{0, 1, 2}), .names = {"a", "b", "c"}};
}

struct Free {
  void operator()(std::byte* base) const { std::free(base); }
};

/// Knows nothing of hosts whose connection is lost.
struct NoReconnector : comm::Reconnector {
  std::optional<Connection> reconnect(int /*rank*/) override { return {}; }
  bool has_ended(int /*rank*/) override { return false; }
  void give_up(int /*rank*/) override {}
};

/// The hub's board and agent, and the other ends of its lines.
struct Star {
  static std::byte* zeroed() {
    const size_t bytes = (Board::bytes_needed(kRanks) + 127) / 128 * 128;
    void* const base = std::aligned_alloc(128, bytes);
    std::memset(base, 0, bytes);
    return static_cast<std::byte*>(base);
  }

  Star() {
    const board::Mirror mirror(board);
    std::vector<comm::PeerConnection> lines;
    for (int rank = 1; rank < kRanks; ++rank) {
      mirror.introduce(rank, getpid(), 0, "elsewhere");
      int ends[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
      lines.push_back({.rank = rank, .connection = Connection(transport::UniqueFd(ends[0]))});
      lines.back().connection.trust(comm::kMaxBlobBytes);
      others.emplace_back(transport::UniqueFd(ends[1]));
      others.back().trust(comm::kMaxBlobBytes);
    }
    agent = std::make_unique<comm::Agent>(
        board, std::move(lines), [](int) { return -1; }, std::make_unique<NoReconnector>(),
        milliseconds(10'000));
  }

  Connection& host(int number) { return others[static_cast<size_t>(number - 1)]; }
  void send(int from, const std::string& message) {
    REQUIRE(
        host(from)
            .send(FrameKind::kControl, 0, message, {}, steady_clock::now() + milliseconds(20'000))
            .ok());
  }
  /// The next message's letter; '\0': none in 20 s.
  char next(int to) {
    const auto until = steady_clock::now() + milliseconds(20'000);
    while (steady_clock::now() < until) {
      auto received = host(to).try_receive();
      REQUIRE(received.ok());
      if (*received && !(*received)->frame.payload.empty()) return (*received)->frame.payload[0];
      pollfd readable{host(to).fd(), POLLIN, 0};
      (void)poll(&readable, 1, 100);
    }
    return '\0';
  }
  ~Star() {
    for (int rank = 1; rank < kRanks; ++rank) {
      board.state(rank).life = static_cast<uint32_t>(board::Life::kGone);
      (void)host(rank).send(FrameKind::kControl, 0, "G", {}, steady_clock::now());
    }
    board.state(0).life = static_cast<uint32_t>(board::Life::kGone);
  }

  std::unique_ptr<std::byte, Free> memory{zeroed()};
  Board board{memory.get(), kRanks, 0, "world", places()};
  std::vector<Connection> others;
  std::unique_ptr<comm::Agent> agent;
};

/// How often this process's other threads have gone to sleep.
uint64_t sleeps_of_others() {
  uint64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      uint64_t count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count) sum += count;
    }
  }
  return sum;
}

TEST_CASE("the hub does not hand on every host's alarm") {
  Star star;
  constexpr int kAlarms = 200;
  for (int i = 0; i < kAlarms; ++i) star.send(1, "A");
  star.send(1, "E" + board::Mirror::pack_error({1, Status(Code::kAborted, "the end")}));
  int alarms = 0;
  char letter = star.next(2);
  for (; letter != 'V' && letter != '\0'; letter = star.next(2)) alarms += letter == 'A' ? 1 : 0;
  CHECK(letter == 'V');
  CHECK(alarms >= 1);
  CHECK(alarms < kAlarms / 4);
}

TEST_CASE("an agent of a quiet job wakes a few times a second") {
  Star star;
  // Its first rows have come: it is in its loop.
  CHECK(star.next(1) == 'R');
  const uint64_t before = sleeps_of_others();
  std::this_thread::sleep_for(std::chrono::seconds(2));  // what is measured
  const uint64_t wakes = sleeps_of_others() - before;
  INFO(wakes << " times in 2 s");
  CHECK(wakes > 2);
  CHECK(wakes < 60);
}

TEST_CASE("the hub hands on rows of other hosts when new ones have come, or once a second") {
  Star star;
  star.send(1, "A");  // rows travel often
  // Half a second of rows every 50 ms; those of host 1 have not changed.
  size_t rows = 0, bytes = 0;
  const auto began = steady_clock::now();
  auto first = began;
  while (rows == 0 || steady_clock::now() - first < milliseconds(400)) {
    REQUIRE(steady_clock::now() - began < milliseconds(30'000));
    auto received = star.host(2).try_receive();
    REQUIRE(received.ok());
    if (*received && (*received)->frame.payload.starts_with('R')) {
      if (rows++ == 0) first = steady_clock::now();
      bytes += (*received)->frame.payload.size();
    }
    pollfd readable{star.host(2).fd(), POLLIN, 0};
    (void)poll(&readable, 1, 10);
  }
  // Of two hosts, the hub's own and host 1, once, and then of one.
  const board::Mirror mirror(star.board);
  const size_t one = mirror.pack_rows(0, 1).size() + 8;
  CHECK(bytes <= (rows + 2) * (one + 1));
}

}  // namespace
}  // namespace rondo
