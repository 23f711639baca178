// See connector.hpp.
#include "comm/bootstrap/rendezvous/connector.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/base/process.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr milliseconds kRetryEvery{5};
// Longer after a suspicion: a rank 0 that has another secret lists the connections it turned away.
constexpr milliseconds kSuspectEvery{50};
// An unproved listener may be rank 0 of another job, which stays, or an impostor, which may leave
// the place to rank 0. Only time tells them apart.
constexpr milliseconds kSuspicionLimit{2000};
// Another program closes every connection; a rank 0 closes only those without a challenge when its
// meeting ends, and several communicators may share a port.
constexpr int kMaxDrops = 100;
// A rank 0 sends its challenge at once, and its proof. It waits as long for the hello (acceptor.cpp).
constexpr milliseconds kSilence{5000};

}  // namespace

Result<std::optional<Joined>> Connector::attempt() {
  meeting_.facts.is_seen = false;
  auto socket = meeting_.rendezvous.try_connect(deadline_);
  if (!socket.ok()) return socket.status();
  if (!*socket) {
    suspect_since_.reset();
    drops_ = 0;
    return std::optional<Joined>();
  }
  const int fd = (*socket)->get();
  Credentials credentials{.pid = 0, .uid = geteuid()};
  if (!meeting_.rendezvous.is_tcp()) {
    credentials = RONDO_TRY(credentials_of(fd));
  }
  if (credentials.uid != geteuid()) {
    return Status(Code::kBootstrap, "the socket " + meeting_.rendezvous.text() +
                                        " belongs to uid " + std::to_string(credentials.uid));
  }
  auto pidfd = RONDO_TRY(open_pidfd(credentials.pid, meeting_.number_of(0)));
  auto challenge = RONDO_TRY(await_challenge(fd));
  if (!challenge) return std::optional<Joined>();
  // A rank 0: it closes a connection when too many are pending, or when its meeting ends.
  drops_ = 0;
  if (!say_hello(fd, *challenge)) return std::optional<Joined>();
  return wait_for_welcome({.rank = 0,
                           .pid = credentials.pid,
                           .pidfd = std::move(pidfd),
                           .connection = Connection(std::move(**socket))});
}

Status Connector::no_answer() const {
  return Status(Code::kBootstrap, "what listens at " + meeting_.rendezvous.text() +
                                      " did not answer within " + name_duration(meeting_.timeout));
}

Status Connector::pause() const {
  const milliseconds time = suspect_since_ ? kSuspectEvery : kRetryEvery;
  return poll_until({}, deadline_.at_most(steady_clock::now() + time)).status();
}

std::string Connector::suspicion() const {
  return suspicion_.ok() ? "" : "; " + suspicion_.message();
}

Status Connector::suspect(const Status& why, Deadline::Time since) {
  suspicion_ = why;
  if (!suspect_since_) suspect_since_ = since;
  if (steady_clock::now() - *suspect_since_ >= kSuspicionLimit) {
    found_taken_ = true;
    return why;
  }
  if (!has_warned_) {
    const int rank = meeting_.identity.rank;  // rank 0 looks who is at its place
    log(LogLevel::kWarn,
        "rank " + std::to_string(meeting_.number_of(rank)) +
            (rank == 0 ? " cannot listen yet: "
                       : " still waits for rank " + std::to_string(meeting_.number_of(0)) + ": ") +
            why.message());
  }
  has_warned_ = true;
  return {};
}

Status Connector::not_rondo(const std::string& what) const {
  std::string text =
      "what listens at " + meeting_.rendezvous.text() + " is not rank 0 of a rondo job: it " + what;
  if (meeting_.rendezvous.is_tcp()) {
    text += "; if the port is another program's (ss -ltnp shows whose), choose another port";
  }
  return Status(Code::kBootstrap, text);
}

/// The listener closed the connection without a word.
Status Connector::count_drop() {
  if (drops_++ == 0) first_drop_ = steady_clock::now();
  if (drops_ < kMaxDrops) return {};
  return suspect(
      not_rondo("closed the connection of rank " + std::to_string(meeting_.identity.rank) + " " +
                std::to_string(drops_) + " times without a word"),
      first_drop_);
}

/// How long to wait for an unproved listener's next message. In the job's own directory only a rank
/// 0 listens, though it may be stopped.
Deadline Connector::patience() const {
  const Deadline verdict = deadline_ + kVerdictGrace;
  const auto silence = steady_clock::now() + (suspect_since_ ? kSuspicionLimit : kSilence);
  const bool may_be_foreign = meeting_.rendezvous.is_tcp() && meeting_.is_needed == nullptr &&
                              !meeting_.identity.is_kept_place;
  return may_be_foreign ? verdict.at_most(silence) : verdict;
}

/// After patience() with it. Another attempt shows whether the listener is still there.
Status Connector::count_silence() {
  if ((deadline_ + kVerdictGrace).has_passed()) return no_answer();
  return suspect(not_rondo("says nothing"), steady_clock::now());
}

/// Nothing: the connection is of no use, try again.
Result<std::optional<Challenge>> Connector::await_challenge(int fd) {
  const Deadline until = patience();
  Challenge challenge{};
  size_t received = 0;
  while (received < sizeof challenge) {
    pollfd readable{fd, POLLIN, 0};
    auto ready = RONDO_TRY(poll_until({&readable, 1}, until));
    if (!ready) {
      RONDO_TRY(count_silence());
      return std::optional<Challenge>();
    }
    char* into = reinterpret_cast<char*>(&challenge) + received;
    const ssize_t got = recv(fd, into, sizeof challenge - received, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      RONDO_TRY(count_drop());
      return std::optional<Challenge>();
    }
    if (got > 0) received += static_cast<size_t>(got);
    if (auto verdict = judge_beginning(challenge, received)) {
      RONDO_TRY(suspect(*verdict == HelloVerdict::kVersion
                            ? other_version(challenge.version, kProtocolVersion)
                            : not_rondo("says something else"),
                        steady_clock::now()));
      return std::optional<Challenge>();
    }
  }
  return std::optional<Challenge>(challenge);
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
              .job = pack_job(identity.job),
              .nonce = {},
              .proof = {}};
  const Digest key = key_of(identity.secret);
  prove(hello, challenge, key);
  expected_proof_ = counter_proof(hello, challenge, key);
  keys_ = frame_keys(hello, challenge, key, false);
  meeting_.facts.is_seen = send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
  return meeting_.facts.is_seen;
}

bool Connector::is_proof(const Frame& frame) const {
  Digest proof{};
  if (frame.kind != FrameKind::kProof || frame.payload.size() != proof.size()) return false;
  std::memcpy(proof.data(), frame.payload.data(), proof.size());
  return equal(proof, expected_proof_);
}

Status Connector::explain_unproved(const Frame& frame) const {
  const std::string there = "what listens at " + meeting_.rendezvous.text();
  if (frame.kind == FrameKind::kProof) {
    return {Code::kBootstrap, there + " does not know this job's secret"};
  }
  std::string answer = to_string(frame.kind);
  if (frame.kind == FrameKind::kError) answer = unpack_status(frame.payload).message();
  return {Code::kBootstrap, there + " has not proved this job's secret and answers: " + answer};
}

/// Whether rank 0, which has closed its connection, has died; else it dropped this connection.
Result<bool> Connector::has_ended(const PeerConnection& host) const {
  if (!host.pidfd.valid()) return proven_ && host.pid != getpid();
  // A killed process's sockets close a little before its pidfd becomes readable.
  pollfd process{host.pidfd.get(), POLLIN, 0};
  return poll_until({&process, 1}, steady_clock::now() + milliseconds(50));
}

/// Nothing: the connection is of no use, try again.
Result<std::optional<Frame>> Connector::next_frame(PeerConnection& host) {
  std::string who = "rank " + std::to_string(meeting_.number_of(0));
  if (host.pid > 0) who += " " + pid_text(host.pid);
  bool ended = false;
  const Deadline until = proven_ ? deadline_ + kVerdictGrace : patience();
  while (true) {
    auto received = host.connection.try_receive();
    if (received.ok() && *received) return std::optional<Frame>(std::move((*received)->frame));
    if (received.status().code() == Code::kBootstrap && !proven_) {
      RONDO_TRY(suspect(not_rondo("sends what it must not: " + received.status().message()),
                        steady_clock::now()));
      return std::optional<Frame>();
    }
    if (!received.ok() && received.status().code() != Code::kPeerDied) return received.status();
    if (!received.ok()) {
      ended = RONDO_TRY(has_ended(host));
      if (!ended) return std::optional<Frame>();
    }
    if (ended && !proven_) return std::optional<Frame>();
    const char* const moment = "while the ranks were meeting";
    if (ended && !received.ok()) return lost_peer(who, "ended", moment, received.status());
    if (ended) return Status(Code::kPeerDied, who + " ended " + moment);
    pollfd watched[2] = {{host.connection.fd(), POLLIN, 0}, {host.pidfd.get(), POLLIN, 0}};
    auto ready = RONDO_TRY(poll_until(watched, until));
    if (!ready && proven_) return no_answer();
    if (!ready) {
      RONDO_TRY(count_silence());
      return std::optional<Frame>();
    }
    ended = watched[1].revents != 0;
  }
}

Result<std::optional<Joined>> Connector::wait_for_welcome(PeerConnection host) {
  proven_ = false;
  auto first = RONDO_TRY(next_frame(host));
  if (!first) return std::optional<Joined>();
  if (!is_proof(*first)) {
    RONDO_TRY(suspect(explain_unproved(*first), steady_clock::now()));
    return std::optional<Joined>();
  }
  proven_ = true;
  suspect_since_.reset();
  host.connection.trust(
      static_cast<size_t>(meeting_.identity.world_size) * (kMaxBlobBytes + 2 * sizeof(uint32_t)),
      meeting_.rendezvous.is_tcp() ? &keys_ : nullptr);
  auto second = RONDO_TRY(next_frame(host));
  if (!second) return std::optional<Joined>();
  Frame& frame = *second;
  if (frame.kind == FrameKind::kError) {
    meeting_.facts.heard = true;
    return unpack_status(frame.payload);
  }
  if (frame.kind == FrameKind::kOtherName) {
    if (meeting_.on_other_name != nullptr) (*meeting_.on_other_name)(frame.payload);
    return std::optional<Joined>();
  }
  if (frame.kind == FrameKind::kWelcome) {
    return std::optional<Joined>(
        Joined{.host = std::move(host), .welcome = std::move(frame.payload)});
  }
  return Status(Code::kBootstrap,
                std::string("rank 0 answered the hello with ") + to_string(frame.kind));
}

}  // namespace rondo::comm
