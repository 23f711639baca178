// A hostile network around rank 0's port: scanners, floods, slow senders, replays, and a machine in
// the middle. None of them ends a job or delays it beyond a limit.
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "comm/bootstrap/session/bootstrap.hpp"
#include "tests/comm/bootstrap/frame_helpers.hpp"
#include "tests/comm/bootstrap/proxy.hpp"
#include "tests/comm/bootstrap/tcp_helpers.hpp"
#include "tests/harness/catch.hpp"
#include "tests/harness/contains.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {
namespace {

using comm::Bootstrap;
using comm::FrameKind;
using comm::Hello;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::expect;
using testing::ForkGang;
using testing::Link;
using transport::UniqueFd;

/// Rank 0 meets at once, the others when they are told to "go".
ForkGang job_at(int port, int ranks) {
  return ForkGang(ranks, [port, ranks](int rank, Link& link) {
    if (rank != 0) link.await("go");
    meet(tcp_identity(rank, ranks, port));
  });
}

/// Runs `attack` over and over on a thread of its own, while it lives.
class Attacker {
 public:
  explicit Attacker(const std::function<void()>& attack)
      : thread_([this, attack] {
          for (; !over_; ++rounds_) attack();
        }) {}
  ~Attacker() {
    over_ = true;
    thread_.join();
  }
  /// Waits until it has done so many rounds more.
  void await_rounds(int more) const {
    for (const int until = rounds_ + more; rounds_ < until;) std::this_thread::yield();
  }

 private:
  std::atomic<bool> over_{false};
  std::atomic<int> rounds_{0};
  std::thread thread_;
};

/// From another address, so that rank 0 tells them from ranks.
UniqueFd connect_as_stranger(int port) { return connect_once(port, "127.0.0.2"); }

TEST_CASE("port scans do not stop a job", "[hostile]") {
  const int port = free_port();
  ForkGang gang = job_at(port, 3);
  connect_to_loopback(port);
  Attacker scanner([&] {
    connect_as_stranger(port);
    if (UniqueFd fd = connect_as_stranger(port); fd.valid()) reset_connection(std::move(fd));
    if (UniqueFd fd = connect_as_stranger(port); fd.valid()) shutdown(fd.get(), SHUT_WR);
  });
  scanner.await_rounds(500);
  tell_all(gang, {1, 2}, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("a flood of connections that are held open neither stops a job nor delays it much",
          "[hostile]") {
  const int port = free_port();
  ForkGang gang = job_at(port, 3);
  connect_to_loopback(port);
  std::vector<UniqueFd> held(512);
  size_t next = 0, made = 0;
  {
    Attacker flood([&] {
      UniqueFd fd = connect_as_stranger(port);
      made += fd.valid() ? 1 : 0;
      held[next++ % held.size()] = std::move(fd);
    });
    flood.await_rounds(3000);
    const double start = gang.seconds();
    tell_all(gang, {1, 2}, "go");
    testing::require_all_ok(gang.join());
    CHECK(gang.seconds() - start < 15);
  }
  CHECK(made > 2000);
}

TEST_CASE("a flood from another address does not push out a rank that has yet to answer",
          "[hostile]") {
  const int port = free_port();
  ForkGang gang = job_at(port, 3);
  const UniqueFd one = connect_to_loopback(port);
  const Hello hello = good_hello(1, 3, read_challenge(one));
  std::vector<UniqueFd> flood;
  for (int k = 0; k < 500; ++k) {
    flood.push_back(connect_as_stranger(port));
    REQUIRE(flood.back().valid());
  }
  CHECK(read_challenge(flood.back()).magic == comm::kChallengeMagic);  // all are accepted
  send_bytes(one, &hello, sizeof hello);
  comm::FrameHeader proof{};
  REQUIRE(recv(one.get(), &proof, sizeof proof, MSG_WAITALL) == sizeof proof);
  CHECK(proof.kind == FrameKind::kProof);
}

TEST_CASE("slow senders are cut off after five seconds, however regularly they send", "[hostile]") {
  const int port = free_port();
  ForkGang gang = job_at(port, 2);
  struct Slow {
    UniqueFd fd;
    Hello hello;
    size_t sent = 0;
  };
  std::vector<Slow> slow;
  for (int k = 0; k < 30; ++k) {
    UniqueFd fd = connect_to_loopback(port);
    const Hello hello = good_hello(1, 2, read_challenge(fd));
    slow.push_back({std::move(fd), hello});
  }
  const auto start = steady_clock::now();
  while (!slow.empty()) {
    REQUIRE(steady_clock::now() - start < seconds(12));  // less than the whole hello takes
    std::vector<pollfd> closed;
    for (Slow& each : slow) closed.push_back({each.fd.get(), POLLIN, 0});
    poll(closed.data(), closed.size(), 40);  // how slow they are
    for (size_t i = slow.size(); i-- > 0;) {
      if (closed[i].revents != 0) {
        slow.erase(slow.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      const char* bytes = reinterpret_cast<const char*>(&slow[i].hello);
      if (slow[i].sent < sizeof(Hello) - 1) send_bytes(slow[i].fd, bytes + slow[i].sent++, 1);
    }
  }
  CHECK(steady_clock::now() - start > seconds(4));
  gang.tell(1, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("bytes that no rank of this version sends are answered at once", "[hostile]") {
  const int port = free_port();
  ForkGang gang = job_at(port, 2);
  // Long before it is cut off as too slow.
  const auto answer = [](const UniqueFd& fd, const void* bytes, size_t count) {
    const auto start = steady_clock::now();
    send_bytes(fd, bytes, count);
    const std::string heard = hear_out(fd);
    CHECK(steady_clock::now() - start < seconds(4));
    return heard;
  };
  const UniqueFd scanner = connect_to_loopback(port);
  (void)read_challenge(scanner);
  CHECK(answer(scanner, "GET / HTTP/1.1\r\n", 16).empty());
  const UniqueFd old = connect_to_loopback(port);
  Hello hello = good_hello(1, 2, read_challenge(old));
  hello.version = 2;  // with as many bytes as it had in that version
  CHECK_THAT(answer(old, &hello, 168),
             testing::contains("speaks version " + std::to_string(comm::kProtocolVersion)));
  gang.tell(1, "go");
  testing::require_all_ok(gang.join());
}

TEST_CASE("a rank that sends a frame without a code, or too long a one, ends the job with its name",
          "[hostile]") {
  for (const bool proper : {true, false}) {
    const int port = free_port();
    ForkGang gang(1, [&](int, Link&) {
      expect_no_meeting(
          tcp_identity(0, 2, port), kLong, Code::kBootstrap,
          {"rank 1 (pid ", proper ? "2147483647 bytes, at most" : "authentication code is wrong"});
    });
    const UniqueFd fd = connect_to_loopback(port);
    const comm::Challenge challenge = read_challenge(fd);
    const Hello hello = good_hello(1, 2, challenge);
    send_bytes(fd, &hello, sizeof hello);
    comm::FrameMac mac(comm::frame_keys(hello, challenge, comm::key_of("s3cret"), false).send);
    const comm::FrameHeader header = frame_header(FrameKind::kGather, 1, 2147483647);
    const comm::Tag tag = proper ? mac.of_header(header) : comm::Tag{};
    send_bytes(fd, &header, sizeof header);
    send_bytes(fd, tag.data(), tag.size());
    testing::require_all_ok(gang.join());
  }
}

TEST_CASE("a recorded meeting, played to either side of another, is refused", "[hostile]") {
  std::string of_rank, of_rank_0;
  {
    int middle = 0;
    UniqueFd listener = listen_on_loopback(middle);
    const int port = free_port();  // after it, or it may be the same
    ForkGang gang(2, [&](int rank, Link&) {
      listener.reset();
      meet(tcp_identity(rank, 2, rank == 0 ? port : middle));
    });
    Proxy proxy(std::move(listener), port,
                [](Proxy::Way, size_t, const std::string& frame) { return frame; });
    testing::require_all_ok(gang.join());
    proxy.stop();
    of_rank = proxy.recorded(Proxy::kToTarget);
    of_rank_0 = proxy.recorded(Proxy::kFromTarget);
    REQUIRE(of_rank.size() > sizeof(Hello));
    REQUIRE(of_rank_0.size() > sizeof(comm::Challenge) + sizeof(comm::Digest));
  }
  int port = 0;
  UniqueFd listener = listen_on_loopback(port);
  ForkGang gang(2, [&](int rank, Link& link) {
    listener.reset();
    if (rank == 0) link.await("go");
    meet(tcp_identity(rank, 2, port));
  });
  UniqueFd victim = accept_one(listener);
  listener.reset();
  send_bytes(victim, of_rank_0.data(), of_rank_0.size());
  gang.tell(0, "go");
  const UniqueFd fd = connect_to_loopback(port);
  send_bytes(fd, of_rank.data(), of_rank.size());
  hear_out(fd);  // until it is closed; rank 1 may have met before
  testing::require_all_ok(gang.join());
}

/// What a machine in the middle does to the frames of one way.
struct Interference {
  const char* what;
  size_t good;  // frames that arrive before the error
  std::function<std::string(size_t number, const std::string& frame)> change;
};

std::vector<Interference> interferences() {
  return {
      {"changes a bit of a payload", 2,
       [](size_t number, std::string frame) {
         if (number == 2) frame[frame.size() - sizeof(comm::Tag) - 1] ^= 4;
         return frame;
       }},
      {"changes a length", 2,
       [](size_t number, std::string frame) {
         if (number == 2) frame[offsetof(comm::FrameHeader, length) + 1] ^= 1;
         return frame;
       }},
      {"drops a frame", 2,
       [](size_t number, const std::string& frame) { return number == 2 ? "" : frame; }},
      {"repeats a frame", 3,
       [](size_t number, const std::string& frame) { return number == 2 ? frame + frame : frame; }},
      {"swaps two frames", 2,
       [held = std::string()](size_t number, const std::string& frame) mutable {
         if (number == 2) held = frame;
         return number == 2 ? "" : number == 3 ? frame + held : frame;
       }},
      {"inserts a frame of its own", 2,
       [](size_t number, const std::string& frame) {
         return number == 2 ? frame_bytes(FrameKind::kControl, 3, "mine") + frame : frame;
       }},
  };
}

TEST_CASE("a machine in the middle of a connection that is kept ends it with an error, either way",
          "[hostile]") {
  for (const Proxy::Way changed : {Proxy::kToTarget, Proxy::kFromTarget}) {
    for (const Interference& interference : interferences()) {
      INFO((changed == Proxy::kToTarget ? "to rank 0: " : "from rank 0: ") << interference.what);
      int port = 0, middle = 0;
      const UniqueFd listener = listen_on_loopback(port);
      Proxy proxy(listen_on_loopback(middle), port,
                  [&](Proxy::Way way, size_t number, const std::string& frame) {
                    return way == changed ? interference.change(number, frame) : frame;
                  },
                  {0, 0});
      comm::Connection far(connect_to_loopback(middle)), near(accept_one(listener));
      const auto [zero, one] = make_frame_keys();
      near.trust(1000, &zero);
      far.trust(1000, &one);
      comm::Connection& sender = changed == Proxy::kToTarget ? far : near;
      comm::Connection& receiver = changed == Proxy::kToTarget ? near : far;
      for (uint32_t i = 0; i < 6; ++i) {
        REQUIRE(sender.try_send(FrameKind::kControl, i, "frame " + std::to_string(i)).ok());
      }
      Status status;
      size_t good = 0;
      while (status.ok()) {
        auto received = receiver.try_receive();
        status = received.status();
        if (received.ok() && *received) {
          CHECK((*received)->frame.payload == "frame " + std::to_string(good++));
        } else if (received.ok()) {
          pollfd readable{receiver.fd(), POLLIN, 0};
          REQUIRE(poll(&readable, 1, 10'000) == 1);
        }
      }
      CHECK(good == interference.good);
      expect_failure(status, Code::kBootstrap, {"altered, repeated, dropped or moved"});
    }
  }
}

TEST_CASE("a machine in the middle that changes a frame of a meeting ends it, on both ranks",
          "[hostile]") {
  const std::string found = "frame 0 of the connection is not the one that the other side sent";
  for (const Proxy::Way changed : {Proxy::kToTarget, Proxy::kFromTarget}) {
    int middle = 0;
    UniqueFd listener = listen_on_loopback(middle);
    const int port = free_port();  // after it, or it may be the same
    ForkGang gang(2, [&](int rank, Link&) {
      listener.reset();
      const auto id = tcp_identity(rank, 2, rank == 0 ? port : middle);
      const Status status = Bootstrap::meet(id, "world", kLong).status();
      const bool finds = (rank == 0) == (changed == Proxy::kToTarget);
      expect(!status.ok(), "it has met");
      if (finds) expect_failure(status, Code::kBootstrap, {found});
    });
    Proxy proxy(std::move(listener), port, [&](Proxy::Way way, size_t number, std::string frame) {
      if (way == changed && number == 0) frame.back() ^= 1;
      return frame;
    });
    testing::require_all_ok(gang.join());
    CHECK(gang.seconds() < 20);
  }
}

}  // namespace
}  // namespace rondo
