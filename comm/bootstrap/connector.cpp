// See connector.hpp.
#include "comm/bootstrap/connector.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/base/process.hpp"
#include "comm/bootstrap/bootstrap.hpp"

namespace rondo::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

// Half a second of attempts (meeting.cpp). Another program closes every connection; a rank 0 closes
// only those without a challenge when its meeting ends, and several communicators may share a port.
constexpr int kMaxDrops = 100;
// A rank 0 sends its challenge at once. It waits as long for the hello (acceptor.cpp).
constexpr milliseconds kSilence{5000};

}  // namespace

Result<std::optional<Joined>> Connector::attempt() {
  auto socket = meeting_.rendezvous.try_connect(deadline_);
  if (!socket.ok()) return socket.status();
  if (!*socket) return std::optional<Joined>();
  const int fd = (*socket)->get();
  Credentials credentials{.pid = 0, .uid = geteuid()};
  if (!meeting_.rendezvous.is_tcp()) {
    auto known = credentials_of(fd);
    if (!known.ok()) return known.status();
    credentials = *known;
  }
  if (credentials.uid != geteuid()) {
    return Status(Code::kBootstrap, "the socket " + meeting_.rendezvous.text() +
                                        " belongs to uid " + std::to_string(credentials.uid));
  }
  auto pidfd = open_pidfd(credentials.pid, 0);
  if (!pidfd.ok()) return pidfd.status();
  auto challenge = await_challenge(fd);
  if (!challenge.ok()) return challenge.status();
  if (!*challenge) {
    if (++drops_ < kMaxDrops) return std::optional<Joined>();
    return not_rondo("closed the connection of rank " + std::to_string(meeting_.identity.rank) +
                     " " + std::to_string(kMaxDrops) + " times without a word");
  }
  // A rank 0: it closes a connection when too many are pending, or when its meeting ends.
  drops_ = 0;
  if (!say_hello(fd, **challenge)) return std::optional<Joined>();
  const size_t all_blobs = static_cast<size_t>(meeting_.identity.world_size) *
                           (Bootstrap::kMaxBlobBytes + sizeof(uint32_t));
  return wait_for_welcome({.rank = 0,
                           .pid = credentials.pid,
                           .pidfd = std::move(*pidfd),
                           .connection = Connection(std::move(**socket), all_blobs)});
}

Status Connector::no_answer() const {
  return Status(Code::kBootstrap, "what listens at " + meeting_.rendezvous.text() +
                                      " did not answer within " + name_duration(meeting_.timeout));
}

Status Connector::not_rondo(const std::string& what) {
  met_another_program_ = true;
  std::string text =
      "what listens at " + meeting_.rendezvous.text() + " is not rank 0 of a rondo job: it " + what;
  if (meeting_.rendezvous.is_tcp()) {
    text += "; if the port is another program's (ss -ltnp shows whose), choose another port";
  }
  return Status(Code::kBootstrap, text);
}

/// Nothing: the connection was closed.
Result<std::optional<Challenge>> Connector::await_challenge(int fd) {
  const Deadline verdict = deadline_ + kVerdictGrace;
  // In the job's own directory only a rank 0 listens, though it may be stopped.
  const auto silence = steady_clock::now() + kSilence;
  const bool may_be_another = meeting_.rendezvous.is_tcp() && !verdict.is_before(silence);
  const Deadline until = may_be_another ? verdict.at_most(silence) : verdict;
  Challenge challenge{};
  size_t received = 0;
  while (received < sizeof challenge) {
    pollfd readable{fd, POLLIN, 0};
    auto ready = poll_until({&readable, 1}, until);
    if (!ready.ok()) return ready.status();
    if (!*ready) {
      return may_be_another ? not_rondo("has said nothing for " + name_duration(kSilence))
                            : no_answer();
    }
    char* into = reinterpret_cast<char*>(&challenge) + received;
    const ssize_t got = recv(fd, into, sizeof challenge - received, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      return std::optional<Challenge>();
    }
    if (got > 0) received += static_cast<size_t>(got);
    if (received >= sizeof challenge.magic && challenge.magic != kChallengeMagic) {
      return not_rondo("says something else");
    }
  }
  if (challenge.version == kProtocolVersion) return std::optional<Challenge>(challenge);
  return other_version(challenge.version, kProtocolVersion);
}

bool Connector::say_hello(int fd, const Challenge& challenge) {
  const Identity& identity = meeting_.identity;
  const auto as_ms = [](milliseconds duration) {
    return static_cast<uint32_t>(std::clamp<int64_t>(duration.count(), 0, UINT32_MAX));
  };
  Hello hello{.magic = kHelloMagic,
              .version = kProtocolVersion,
              .rank = static_cast<uint32_t>(identity.rank),
              .world_size = static_cast<uint32_t>(identity.world_size),
              .pid = static_cast<uint32_t>(getpid()),
              .pid_namespace = base::own_pid_namespace(),
              .limit_ms = as_ms(meeting_.timeout),
              .left_ms = as_ms(deadline_.left()),
              .name = pack_name(meeting_.name),
              .nonce = {},
              .proof = {}};
  const Digest key = key_of(identity.secret);
  prove(hello, challenge, key);
  expected_proof_ = counter_proof(hello, challenge, key);
  return send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
}

/// Whether rank 0 knows the secret too.
Status Connector::check_proof(const std::string& payload) const {
  Digest proof{};
  if (payload.size() == proof.size()) std::memcpy(proof.data(), payload.data(), proof.size());
  if (equal(proof, expected_proof_)) return {};
  return Status(Code::kBootstrap, "what listens at " + meeting_.rendezvous.text() +
                                      " does not know this job's secret");
}

/// Whether rank 0, which has closed its connection, has died; else it dropped this connection.
Result<bool> Connector::has_ended(const PeerConnection& host) const {
  if (!host.pidfd.valid()) return proven_ && host.pid != getpid();
  // A killed process's sockets close a little before its pidfd becomes readable.
  pollfd process{host.pidfd.get(), POLLIN, 0};
  return poll_until({&process, 1}, steady_clock::now() + milliseconds(50));
}

Result<std::optional<Joined>> Connector::wait_for_welcome(PeerConnection host) {
  const std::string who = host.pid > 0 ? "rank 0 (pid " + std::to_string(host.pid) + ")" : "rank 0";
  bool ended = false;
  proven_ = false;
  while (true) {
    auto received = host.connection.try_receive();
    if (!received.ok() && received.status().code() != Code::kPeerDied) return received.status();
    if (received.ok() && *received) {
      Frame& frame = (*received)->frame;
      if (frame.kind == FrameKind::kOtherName) return std::optional<Joined>();
      if (frame.kind == FrameKind::kError) return unpack_status(frame.payload);
      if (frame.kind == FrameKind::kProof) {
        RONDO_RETURN_IF_ERROR(check_proof(frame.payload));
        proven_ = true;
        continue;
      }
      if (frame.kind == FrameKind::kWelcome && proven_) {
        return std::optional<Joined>(
            Joined{.host = std::move(host), .welcome = std::move(frame.payload)});
      }
      return Status(Code::kBootstrap, who + " answered the hello with " + to_string(frame.kind));
    }
    if (!received.ok()) {
      auto dead = has_ended(host);
      if (!dead.ok()) return dead.status();
      ended = *dead;
      if (!ended) return std::optional<Joined>();
    }
    if (ended) return Status(Code::kPeerDied, who + " ended while the ranks were meeting");
    pollfd watched[2] = {{host.connection.fd(), POLLIN, 0}, {host.pidfd.get(), POLLIN, 0}};
    auto ready = poll_until(watched, deadline_ + kVerdictGrace);
    if (!ready.ok()) return ready.status();
    if (!*ready) return no_answer();
    ended = watched[1].revents != 0;
  }
}

}  // namespace rondo::comm
