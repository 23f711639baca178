// Listeners at the meeting place that are not rank 0: another program, or an impostor without the
// job's secret. What they send ends no rank while the place may still become rank 0's.
#include <fcntl.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/bootstrap/session/bootstrap.hpp"
#include "rondo/log.hpp"
#include "tests/comm/bootstrap/frame_helpers.hpp"
#include "tests/comm/bootstrap/tcp_helpers.hpp"

namespace rondo {
namespace {

using comm::FrameKind;
using comm::Hello;
using testing::expect;
using testing::ForkGang;
using testing::Link;
using testing::TempDirectory;
using transport::UniqueFd;

/// As rank 0 does first; returns the answer.
Hello challenge(const UniqueFd& fd) {
  const comm::Challenge challenge = comm::make_challenge();
  send_bytes(fd, &challenge, sizeof challenge);
  Hello hello{};
  (void)recv(fd.get(), &hello, sizeof hello, MSG_WAITALL);
  return hello;
}

/// Passes a descriptor with the first byte of a frame.
void send_descriptor(const UniqueFd& fd) {
  char byte = 'R';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const attached = CMSG_FIRSTHDR(&message);
  attached->cmsg_level = SOL_SOCKET;
  attached->cmsg_type = SCM_RIGHTS;
  attached->cmsg_len = CMSG_LEN(sizeof(int));
  *reinterpret_cast<int*>(CMSG_DATA(attached)) = fd.get();
  (void)sendmsg(fd.get(), &message, MSG_NOSIGNAL);
}

using Serve = std::function<void(const UniqueFd&)>;

/// One way to misbehave on a connection.
struct Impostor {
  const char* found;  // in the error of a rank that meets nothing else there
  Serve serve;
  bool unix_only = false;
};

Serve sends_bytes(const std::string& bytes) {
  return [=](const UniqueFd& fd) { send_bytes(fd, bytes.data(), bytes.size()); };
}

/// Sends this after the rank's hello.
Serve answers(const std::string& bytes) {
  return [=](const UniqueFd& fd) {
    challenge(fd);
    send_bytes(fd, bytes.data(), bytes.size());
  };
}

Serve answers(FrameKind kind, const std::string& payload) {
  return answers(frame_bytes(kind, 0, payload));
}

std::vector<Impostor> impostors() {
  comm::Challenge later = comm::make_challenge();
  later.version = 9;
  return {
      {"says something else", sends_bytes("SSH-2.0-OpenSSH_9.2\r\n")},
      {"speaks version 9",
       sends_bytes(std::string(reinterpret_cast<const char*>(&later), sizeof later))},
      {"has not proved this job's secret and answers: go home",
       answers(FrameKind::kError, comm::pack_status({Code::kPeerDied, "go home"}))},
      {"does not know this job's secret",
       answers(FrameKind::kProof, std::string(sizeof(comm::Digest), 'x'))},
      {"does not know this job's secret",  // it sends back the rank's own proof
       [](const UniqueFd& fd) {
         const Hello hello = challenge(fd);
         const std::string proof =
             frame_bytes(FrameKind::kProof, 0, {hello.proof.begin(), hello.proof.end()});
         send_bytes(fd, proof.data(), proof.size());
       }},
      {"answers: welcome", answers(FrameKind::kWelcome, "")},
      {"sends what it must not: received bytes that are no frame",
       answers("HTTP/1.1 400 Bad Request\r\n")},
      {"a payload of 100000 bytes, at most 4100",
       answers(FrameKind::kError, std::string(100'000, 'x'))},
      {"sends what it must not: received descriptors",
       [](const UniqueFd& fd) {
         challenge(fd);
         send_descriptor(fd);
       },
       true},
  };
}

/// A meeting place of either kind, with a listener of the test's own.
struct Place {
  explicit Place(bool over_tcp) : tcp(over_tcp) {
    if (tcp) {
      listener = listen_on_loopback(port);
      return;
    }
    listener.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path().copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(listener.get(), 8) == 0);
  }
  std::string socket_path() const { return directory.path() + "/world.sock"; }
  comm::Identity identity_of(int rank) const {
    return tcp ? tcp_identity(rank, 2, port) : identity(rank, 2, directory);
  }
  /// From now on, rank 0 can listen.
  void leave() {
    if (!tcp) unlink(socket_path().c_str());
    listener.reset();
  }
  bool tcp;
  int port = 0;
  TempDirectory directory;
  UniqueFd listener;
};

TEST_CASE("what an impostor sends ends no rank, which meets the real rank 0", "[impostor]") {
  for (const bool tcp : {true, false}) {
    for (const Impostor& impostor : impostors()) {
      if (tcp && impostor.unix_only) continue;
      INFO((tcp ? "TCP: " : "a directory: ") << impostor.found);
      Place place(tcp);
      ForkGang gang(2, [&](int rank, Link& link) {
        place.listener.reset();  // this process's copy
        if (rank == 0) link.await("go");
        meet(place.identity_of(rank));
      });
      const UniqueFd fd = accept_one(place.listener);
      place.leave();
      impostor.serve(fd);
      gang.tell(0, "go");
      testing::require_all_ok(gang.join());
    }
  }
}

TEST_CASE("an impostor that leaves the place but holds a silent connection ends no rank",
          "[impostor]") {
  const std::string header = frame_bytes(FrameKind::kProof, 0, "");
  const Serve ways[] = {[](const UniqueFd&) {}, answers(""),
                        answers(header.substr(0, sizeof(comm::FrameHeader) - 1))};
  std::vector<std::unique_ptr<Place>> places;
  for (int k = 0; k < 3; ++k) places.push_back(std::make_unique<Place>(true));
  ForkGang gang(6, [&](int i, Link& link) {
    for (const auto& place : places) place->listener.reset();
    if (i < 3) link.await("go");
    meet(places[static_cast<size_t>(i % 3)]->identity_of(i / 3));
  });
  std::vector<UniqueFd> held;
  for (size_t k = 0; k < 3; ++k) {
    held.push_back(accept_one(places[k]->listener));
    places[k]->leave();
    ways[k](held.back());
    gang.tell(static_cast<int>(k), "go");
  }
  for (int i = 0; i < 6; ++i) gang.await_end(i);
  CHECK(gang.seconds() < 25);
  testing::require_all_ok(gang.join());
}

/// Serves every connection at `listener`, as long as it lives.
class Occupant {
 public:
  Occupant(UniqueFd listener, const Serve& serve)
      : listener_(std::move(listener)), thread_([this, serve] {
          while (!over_) {
            pollfd come{listener_.get(), POLLIN, 0};
            if (poll(&come, 1, 20) != 1) continue;
            const UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
            if (fd.valid()) serve(fd);
          }
        }) {}
  ~Occupant() {
    over_ = true;
    thread_.join();
  }

 private:
  const UniqueFd listener_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST_CASE("a place that another process keeps is found out by all, whatever that does",
          "[impostor]") {
  std::vector<Impostor> all = impostors();
  all.push_back({" times without a word", [](const UniqueFd&) {}});
  std::vector<std::unique_ptr<Place>> places;
  for (const Impostor& impostor : all) {
    places.push_back(std::make_unique<Place>(!impostor.unix_only));
  }
  const int count = static_cast<int>(all.size());
  ForkGang gang(2 * count, [&](int i, Link&) {
    const size_t k = static_cast<size_t>(i % count);
    const int rank = i / count;
    for (const auto& place : places) place->listener.reset();
    if (rank == 0 && !places[k]->tcp) return;  // rank 0 takes a directory whose lock is free
    std::string warned;
    set_log_callback([&](LogLevel, std::string_view text) { warned += text; });
    std::vector<std::string> says{all[k].found};
    if (rank == 0)
      says.push_back("rank 0 cannot listen at " + places[k]->identity_of(0).rendezvous);
    expect_no_meeting(places[k]->identity_of(rank), kLong, Code::kBootstrap, says);
    set_log_callback({});
    expect(rank != 0 || warned.find("still waits") == std::string::npos, warned);
  });
  std::vector<std::unique_ptr<Occupant>> occupants;
  for (size_t k = 0; k < all.size(); ++k) {
    occupants.push_back(std::make_unique<Occupant>(std::move(places[k]->listener), all[k].serve));
  }
  testing::require_all_ok(gang.join());
}

TEST_CASE("a place whose listener says nothing is found out", "[impostor]") {
  Place place(true);
  ForkGang gang(3, [&](int i, Link&) {
    place.listener.reset();
    const bool is_brief = i == 2;
    expect_no_meeting(place.identity_of(i % 2), is_brief ? kShort : kLong, Code::kBootstrap,
                      is_brief ? std::vector<std::string>{"did not answer within 0."}
                               : std::vector<std::string>{"says nothing", "choose another port"});
  });
  testing::require_all_ok(gang.join());
}

TEST_CASE("at the deadline, a rank says what it met instead of rank 0", "[impostor]") {
  Place place(true);
  ForkGang gang(1, [&](int, Link&) {
    place.listener.reset();
    expect_no_meeting(place.identity_of(1), kMedium, Code::kBootstrap,
                      {"rank 0 of 2 did not come within 3 s; ", "answers: go home"});
  });
  const UniqueFd fd = accept_one(place.listener);
  place.leave();
  impostors()[2].serve(fd);
  testing::require_all_ok(gang.join());
}

}  // namespace
}  // namespace rondo
