// Two connections to each other: what passes, what is queued for a peer that does not read, and how
// a vanished host or a changed stream shows.
#include "comm/bootstrap/connection/connection.hpp"

#include <linux/filter.h>
#include <sys/resource.h>

#include <string>

#include "comm/bootstrap/rendezvous/rendezvous.hpp"
#include "tests/comm/bootstrap/frame_helpers.hpp"
#include "tests/comm/bootstrap/tcp_helpers.hpp"
#include "tests/harness/catch.hpp"

namespace rondo {
namespace {

using comm::Connection;
using comm::Frame;
using comm::FrameKind;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

constexpr size_t kMaxPayload = 4 << 20;

comm::Deadline soon() { return steady_clock::now() + kLong; }

/// Over TCP with codes, or as a unix socket pair without.
struct Ends {
  explicit Ends(bool tcp) {
    if (!tcp) {
      int fds[2];
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
      a = Connection(UniqueFd(fds[0]));
      b = Connection(UniqueFd(fds[1]));
      a.trust(kMaxPayload);
      b.trust(kMaxPayload);
      return;
    }
    int port = 0;
    const UniqueFd listener = listen_on_loopback(port);
    a = Connection(connect_to_loopback(port));
    b = Connection(accept_one(listener));
    const auto [zero, one] = make_frame_keys();
    a.trust(kMaxPayload, &zero);
    b.trust(kMaxPayload, &one);
  }
  Connection a, b;
};

/// The next frame or error; meanwhile `other` writes what it has queued.
Result<Frame> await_frame(Connection& connection, Connection* other = nullptr) {
  while (true) {
    if (other != nullptr) REQUIRE(other->flush().ok());
    auto received = connection.try_receive();
    if (!received.ok()) return received.status();
    if (*received) return std::move((*received)->frame);
    pollfd readable{connection.fd(), POLLIN, 0};
    REQUIRE(poll(&readable, 1, 30'000) == 1);
  }
}

std::string pattern(size_t bytes, uint32_t seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + seed);
  return text;
}

TEST_CASE("frames pass both ways, in order, however they were sent", "[connection]") {
  for (const bool tcp : {true, false}) {
    INFO((tcp ? "TCP" : "unix"));
    Ends ends(tcp);
    for (uint32_t i = 0; i < 200; ++i) {
      const std::string payload = pattern(i * i % 300, i);
      const bool waits = i % 3 == 0;
      const Status sent = waits ? ends.a.send(FrameKind::kControl, i, payload, {}, soon())
                                : ends.a.try_send(FrameKind::kControl, i, payload);
      REQUIRE(sent.ok());
      REQUIRE(ends.b.try_send(FrameKind::kBarrier, i, {}).ok());
    }
    for (uint32_t i = 0; i < 200; ++i) {
      const auto there = await_frame(ends.b, &ends.a), back = await_frame(ends.a, &ends.b);
      REQUIRE(there.ok());
      REQUIRE(there->kind == FrameKind::kControl);
      REQUIRE(there->sequence == i);
      REQUIRE(there->payload == pattern(i * i % 300, i));
      REQUIRE(back.ok());
      REQUIRE(back->sequence == i);
    }
    CHECK_FALSE(ends.a.wants_to_write());
  }
}

TEST_CASE("what a slow reader does not take is queued, up to a limit, and nothing is lost",
          "[connection]") {
  for (const bool tcp : {true, false}) {
    INFO((tcp ? "TCP" : "unix"));
    Ends ends(tcp);
    Status status;
    uint32_t sent = 0;
    while (status.ok()) {
      REQUIRE(sent < 10'000);
      status = ends.a.try_send(FrameKind::kControl, sent, pattern(50'000, sent));
      if (status.ok()) ++sent;
    }
    expect_failure(status, Code::kTimeout, {"it does not read what it is sent"});
    CHECK(ends.a.wants_to_write());
    CHECK(ends.a.queued_bytes() <= Connection::kMaxQueuedBytes);
    CHECK(ends.a.queued_bytes() + 60'000 > Connection::kMaxQueuedBytes);
    // A frame that has to wait behind the queue, and gives up, does not disturb the others.
    const Status late = ends.a.send(FrameKind::kControl, 0, "late", {}, steady_clock::now());
    CHECK(late.code() == Code::kTimeout);
    for (uint32_t i = 0; i < sent; ++i) {
      const auto frame = await_frame(ends.b, &ends.a);
      REQUIRE(frame.ok());
      REQUIRE(frame->sequence == i);
      REQUIRE(frame->payload == pattern(50'000, i));
    }
    CHECK_FALSE(ends.a.wants_to_write());
    REQUIRE(ends.a.try_send(FrameKind::kControl, sent, "again").ok());
    CHECK(await_frame(ends.b)->payload == "again");
  }
}

TEST_CASE("a frame that was sent in part is the last one", "[connection]") {
  Ends ends(true);
  const Status cut = ends.a.send(FrameKind::kControl, 1, std::string(kMaxPayload, 'x'), {},
                                 steady_clock::now() + milliseconds(20));
  REQUIRE(cut.code() == Code::kTimeout);
  CHECK(ends.a.send(FrameKind::kError, 0, "why", {}, soon()).code() == Code::kTimeout);
  CHECK(ends.a.try_send(FrameKind::kError, 0, "why").code() == Code::kTimeout);
  ends.a.close();
  CHECK(await_frame(ends.b).status().code() == Code::kPeerDied);
}

TEST_CASE("a payload over the limit ends the connection before it has come", "[connection]") {
  for (const bool tcp : {true, false}) {
    Ends ends(tcp);
    ends.b.allow(1000);
    REQUIRE(ends.a.send(FrameKind::kControl, 1, std::string(1000, 'x'), {}, soon()).ok());
    REQUIRE(ends.a.send(FrameKind::kControl, 2, std::string(1001, 'x'), {}, soon()).ok());
    REQUIRE(await_frame(ends.b).ok());
    for (int again = 0; again < 2; ++again) {
      expect_failure(await_frame(ends.b).status(), Code::kBootstrap, {"1001 bytes, at most 1000"});
    }
  }
}

/// From now on `connection` receives nothing, not even acknowledgements, as when its link is down.
void go_dark(const Connection& connection) {
  sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &drop};
  REQUIRE(setsockopt(connection.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
}

TEST_CASE("a connection that was reset shows as such, also where a send was the first to notice",
          "[connection]") {
  for (const bool sends : {false, true}) {
    INFO((sends ? "after a send" : "without a send"));
    Ends ends(true);
    reset_connection(UniqueFd(dup(ends.b.fd())));
    ends.b.close();
    pollfd come{ends.a.fd(), POLLIN, 0};
    REQUIRE(poll(&come, 1, 30'000) == 1);
    if (sends) CHECK(ends.a.try_send(FrameKind::kControl, 0, "late").code() == Code::kPeerDied);
    for (int again = 0; again < 2; ++again) {
      expect_failure(ends.a.try_receive().status(), Code::kPeerDied, {"the connection was reset"});
    }
  }
}

TEST_CASE("more descriptors to watch than a process may have are named as such", "[connection]") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{.rlim_cur = 16, .rlim_max = before.rlim_max};
  std::vector<pollfd> watched(17, pollfd{.fd = -1, .events = POLLIN, .revents = 0});
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  const auto ready = comm::poll_until(watched, soon());
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  expect_failure(ready.status(), Code::kResourceExhausted,
                 {"RLIMIT_NOFILE is 16; raise it with ulimit -n"});
}

TEST_CASE("a host that has vanished shows within the limit, with and without data on the way",
          "[connection]") {
  for (const bool with_data : {true, false}) {
    INFO((with_data ? "unacknowledged data" : "idle"));
    Ends ends(true);
    REQUIRE(comm::set_liveness(ends.a.fd(), milliseconds(2000)).ok());
    REQUIRE(ends.a.send(FrameKind::kControl, 1, "there", {}, soon()).ok());
    REQUIRE(await_frame(ends.b).ok());
    go_dark(ends.b);
    const auto start = steady_clock::now();
    if (with_data) REQUIRE(ends.a.try_send(FrameKind::kControl, 2, "lost").ok());
    expect_failure(await_frame(ends.a).status(), Code::kPeerDied, {"its host does not answer"});
    CHECK(steady_clock::now() - start >= milliseconds(900));
    CHECK(steady_clock::now() - start < milliseconds(10'000));
  }
  CHECK_FALSE(comm::set_liveness(-1, milliseconds(2000)).ok());
}

}  // namespace
}  // namespace rondo
