// Rank 0's side of a meeting. A connection is pending until its hello and its proof of the secret
// are right, and on a unix socket its uid. A pending connection lasts at most kHelloLimit, and cannot
// end the job.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>

#include "comm/base/guarded.hpp"
#include "comm/bootstrap/identity/inherited.hpp"
#include "comm/bootstrap/rendezvous/meeting.hpp"
#include "comm/bootstrap/rendezvous/pending.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

constexpr milliseconds kHelloLimit{5000};
// For so long a meeting that has failed tells ranks that come late.
constexpr milliseconds kForLateOnes{1000};
// How often a roll call looks which ranks are needed.
constexpr milliseconds kNeedsChangeEvery{5};
constexpr size_t kPendingBeyondWorld = 64;
// Connections accepted before the pending ones are read: none of them gives way unread to the next.
constexpr size_t kMostAtOnce = kPendingBeyondWorld;

/// An error of accept() that belongs to the connection, which has failed or a firewall forbids.
bool is_of_the_connection(int error) {
  switch (error) {
    case EINTR:
    case ECONNABORTED:
    case EPERM:
    case EPROTO:
    case ENOPROTOOPT:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
    case EOPNOTSUPP:
      return true;
    default:
      return false;
  }
}

class Acceptor {
 public:
  Acceptor(const Meeting& meeting, const Listener& listener)
      : meeting_(meeting),
        listener_(listener),
        world_size_(meeting.identity.world_size),
        expected_{.world_size = static_cast<uint32_t>(world_size_),
                  .name = pack_name(meeting.name),
                  .job = pack_job(meeting.identity.job),
                  .key = key_of(meeting.identity.secret)},
        began_(steady_clock::now()),
        deadline_(meeting.deadline()),
        inherited_(meeting.identity, meeting.timeout, meeting.may_be_inherited()),
        limit_text_(name_duration(meeting.timeout)),
        peers_(static_cast<size_t>(world_size_)),
        pending_(static_cast<size_t>(world_size_) + kPendingBeyondWorld) {}

  Result<std::vector<PeerConnection>> run() {
    Status status;
    try {
      status = gather();
    } catch (...) {
      status = base::caught();
      is_doomed_ = true;  // the others come as before, to learn of it
      status = base::guarded([&] {
        (void)gather();
        return Status(status.code(), name_here() + ": " + status.message());
      });
    }
    if (!status.ok()) {
      tell(status);
      return status;
    }
    peers_.erase(peers_.begin());
    return std::move(peers_);
  }

 private:
  void tell(const Status& why) {
    if (!meeting_.facts.next.empty()) {
      for (PeerConnection& peer : peers_) name_meeting(peer.connection, meeting_.facts.next);
      return;
    }
    tell_all(why);
    if (!is_doomed_) tell_late_ones(why);
  }

  void tell_all(const Status& why) {
    for (PeerConnection& peer : peers_) {
      refuse(peer.connection, why);
      peer.connection.close();
      peer.pidfd.reset();
    }
  }

  /// Else a rank that comes when this one has failed would miss it, and know no more. Nobody is late
  /// where all see the failure by other means.
  void tell_late_ones(const Status& why) {
    if (is_roll_call() || deadline_.can_be_interrupted() || deadline_.has_passed()) return;
    is_doomed_ = true;
    deadline_ = deadline_.at_most(steady_clock::now() + kForLateOnes);
    (void)base::guarded([this] { return gather(); });
    tell_all(why);
  }

  Status gather() {
    while (!is_complete()) {
      RONDO_TRY(wait());
      if (is_over_) return check_peers();
      RONDO_TRY(read_pending());  // before a flood can take the place of one that has answered
      RONDO_TRY(accept_all());
      // Not for every byte of a stranger: it takes two system calls for each peer.
      if (peer_is_ready_ || is_complete()) RONDO_TRY(check_peers());
    }
    return {};
  }

  bool is_complete() const {
    if (joined_ + 1 == world_size_) return true;
    if (!is_roll_call()) return false;
    for (int rank = 1; rank < world_size_; ++rank) {
      if (peers_[static_cast<size_t>(rank)].rank < 0 && (*meeting_.is_needed)(rank)) return false;
    }
    return true;
  }
  bool is_roll_call() const { return meeting_.is_needed != nullptr; }

  /// Until a descriptor is ready, the first pending connection expires, or the deadline.
  Status wait() {
    std::vector<pollfd> watched{{listener_.fd(), POLLIN, 0}};
    Deadline until = deadline_;
    if (is_roll_call()) until = until.at_most(steady_clock::now() + kNeedsChangeEvery);
    for (const PendingConnection& pending : pending_) {
      watched.push_back({pending.socket.get(), POLLIN, 0});
      until = until.at_most(pending.deadline);
    }
    for (const PeerConnection& peer : peers_) {
      watched.push_back({peer.connection.fd(), POLLIN, 0});
      watched.push_back({peer.pidfd.get(), POLLIN, 0});
    }
    if (!has_warned_) until = until.at_most(warn_at());
    if (inherited_.at()) until = until.at_most(*inherited_.at());
    auto ready = RONDO_TRY(poll_until(watched, until));
    if (!is_doomed_) RONDO_TRY(inherited_.check(steady_clock::now()));
    warn_of_missing();
    const auto of_peers = std::span(watched).last(2 * peers_.size());
    peer_is_ready_ = std::ranges::any_of(of_peers, [](pollfd each) { return each.revents != 0; });
    if (ready || !deadline_.has_passed()) return {};
    if (is_roll_call()) {
      is_over_ = true;
      return {};
    }
    return Status(Code::kBootstrap, name_ranks(missing()) + meeting_.of_how_many() +
                                        " did not come within " + limit_text_ + "; " + name_here() +
                                        " waited at " + meeting_.rendezvous.text() +
                                        meeting_.rendezvous.trouble() + rejected_text() +
                                        inherited_.hint());
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < world_size_; ++rank) {
      if (peers_[static_cast<size_t>(rank)].rank < 0) ranks.push_back(meeting_.number_of(rank));
    }
    return ranks;
  }

  steady_clock::time_point warn_at() const {
    constexpr milliseconds kSoonest{
        300};  // deadlines that are shorter are over before anybody reads
    const auto third = (steady_clock::now() + deadline_.left() - began_) / 3;
    return began_ + std::max<steady_clock::duration>(third, kSoonest);
  }

  /// Once, at a third of the deadline: who started the ranks has the rest of it to start the others.
  void warn_of_missing() {
    if (has_warned_ || steady_clock::now() < warn_at()) return;
    has_warned_ = true;
    if (is_roll_call() || is_doomed_ || is_complete()) return;
    const auto waited = std::chrono::duration_cast<milliseconds>(steady_clock::now() - began_);
    log(LogLevel::kWarn, name_ranks(missing()) + meeting_.of_how_many() + " did not come within " +
                             name_duration(waited) + "; " + name_here() + " waits at " +
                             meeting_.rendezvous.text() + " for " + limit_text_ +
                             " in all (RONDO_BOOTSTRAP_TIMEOUT, Config::bootstrap_timeout)" +
                             meeting_.rendezvous.trouble() + rejected_text());
  }

  /// Rank 0, as the ranks call it.
  std::string name_here() const { return "rank " + std::to_string(meeting_.number_of(0)); }

  /// A missing rank may be among the rejected connections.
  std::string rejected_text() const {
    if (rejected_ == 0) return "";
    return "; it turned away " +
           (rejected_ == 1 ? "a connection"
                           : std::to_string(rejected_) + " connections, the last one") +
           " " + last_rejected_;
  }

  /// Sends `why`, and keeps `what` for the error if a rank is missing. The hello is not proven.
  void reject(Connection& connection, const PendingConnection& pending, const Status& why,
              const std::string& what) {
    const std::string from = meeting_.rendezvous.is_tcp() ? "from " + peer_address(connection.fd())
                             : pending.visible_pid > 0    ? pid_text(pending.visible_pid)
                                                          : "from another PID namespace";
    last_rejected_ = from + " that " + what;
    if (++rejected_ == 1) log(LogLevel::kWarn, "rank 0 turned away a connection " + last_rejected_);
    refuse(connection, why);
  }

  Status accept_all() {
    for (size_t turn = 0; turn < kMostAtOnce; ++turn) {
      UniqueFd socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) {
        const int error = errno;
        if (error == EAGAIN) return {};
        if (is_of_the_connection(error)) continue;
        if (error == EMFILE || error == ENFILE) {
          // The kernel reports it also when no connection waits.
          pollfd waiting{listener_.fd(), POLLIN, 0};
          if (poll(&waiting, 1, 0) <= 0) return {};
          if (pending_.drop_one()) continue;
        }
        return system_status("rank 0 cannot accept another rank", error);
      }
      pid_t visible_pid = 0;
      if (!meeting_.rendezvous.is_tcp()) {
        auto credentials = credentials_of(socket.get());
        if (!credentials.ok() || credentials->uid != geteuid()) continue;
        visible_pid = credentials->pid;
      }
      // Always fits into the buffer of a new socket.
      const Challenge challenge = make_challenge();
      if (send(socket.get(), &challenge, sizeof challenge, MSG_NOSIGNAL) != sizeof challenge) {
        continue;
      }
      const uint64_t source = source_of(socket.get());
      pending_.add({.socket = std::move(socket),
                    .source = source,
                    .visible_pid = visible_pid,
                    .deadline = steady_clock::now() + kHelloLimit,
                    .challenge = challenge});
    }
    return {};
  }

  Status read_pending() {
    for (PendingConnection& pending : pending_) {
      if (!pending.socket.valid()) continue;  // answered, and then this rank failed
      char* into = reinterpret_cast<char*>(&pending.hello) + pending.received;
      const ssize_t got =
          recv(pending.socket.get(), into, sizeof(Hello) - pending.received, MSG_DONTWAIT);
      if (got > 0) pending.received += static_cast<size_t>(got);
      const bool waiting = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
      if (pending.received == sizeof(Hello) || judge_beginning(pending.hello, pending.received)) {
        RONDO_TRY(answer_hello(pending));
      } else if (!waiting || steady_clock::now() >= pending.deadline) {
        pending.socket.reset();
      }
    }
    pending_.forget_closed();
    return {};
  }

  /// An error ends the meeting; a bad hello only rejects its connection.
  Status answer_hello(PendingConnection& pending) {
    const Hello& hello = pending.hello;
    Connection connection(std::move(pending.socket));
    const HelloVerdict verdict = judge(hello, pending.challenge, expected_);
    switch (verdict) {
      case HelloVerdict::kGarbage:
        return {};
      case HelloVerdict::kVersion:
        reject(connection, pending, other_version(kProtocolVersion, hello.version),
               "uses another version of rondo");
        return {};
      case HelloVerdict::kSecret:
        reject(connection, pending,
               Status(Code::kBootstrap,
                      "rank 0 has another secret than this rank: it belongs to another job, or "
                      "RONDO_SECRET or RONDO_SECRET_FILE is not the same on both"),
               "called itself rank " + std::to_string(hello.rank) +
                   " and has another secret: RONDO_SECRET or RONDO_SECRET_FILE must be the same on "
                   "all ranks");
        return {};
      case HelloVerdict::kName:
      case HelloVerdict::kAccept:
      case HelloVerdict::kWorldSize:
        break;
    }
    const Digest proof = counter_proof(hello, pending.challenge, expected_.key);
    (void)connection.send(FrameKind::kProof, 0,
                          {reinterpret_cast<const char*>(proof.data()), proof.size()}, {},
                          steady_clock::now());
    const FrameKeys keys = frame_keys(hello, pending.challenge, expected_.key, true);
    connection.trust(kMaxBlobBytes, meeting_.rendezvous.is_tcp() ? &keys : nullptr);
    if (verdict == HelloVerdict::kName) {
      name_meeting(connection, meeting_.name);
      if (meeting_.on_other_name != nullptr) (*meeting_.on_other_name)(unpack_name(hello.name));
      return {};
    }
    if (verdict == HelloVerdict::kAccept) {
      return add_peer(hello, pending.visible_pid, std::move(connection));
    }
    Status status(Code::kBootstrap, "rank " + std::to_string(hello.rank) + " " +
                                        pid_text(static_cast<pid_t>(hello.pid)) +
                                        " says that there are " + std::to_string(hello.world_size) +
                                        " ranks, rank 0 says " + std::to_string(world_size_));
    refuse(connection, status);
    return status;
  }

  Status add_peer(const Hello& hello, pid_t visible_pid, Connection connection) {
    const int rank = static_cast<int>(hello.rank);
    const auto pid = static_cast<pid_t>(hello.pid);
    PeerConnection& peer = peers_[hello.rank];
    // Its first connection was lost.
    if (peer.rank >= 0 && (is_doomed_ || (is_roll_call() && peer.pid == pid))) {
      peer.connection = std::move(connection);
      return {};
    }
    if (rank == 0 || peer.rank >= 0) {
      const int first = (rank == 0 ? connection : peer.connection).fd();
      Status twice(Code::kBootstrap, "rank " + std::to_string(rank) + " was given twice: to pid " +
                                         std::to_string(rank == 0 ? getpid() : peer.pid) +
                                         place_text(first, rank == 0 ? own_host : peer_host) +
                                         " and to pid " + std::to_string(pid) +
                                         place_text(connection.fd(), peer_host) + inherited_text());
      refuse(connection, twice);
      return twice;
    }
    auto pidfd = open_pidfd(visible_pid, meeting_.number_of(rank));
    if (!pidfd.ok()) {
      const Status unwatched(pidfd.status().code(), name_here() + ": " + pidfd.status().message());
      refuse(connection, unwatched);
      return is_roll_call() && unwatched.code() == Code::kPeerDied ? Status() : unwatched;
    }
    peer = {.rank = rank,
            .pid = pid,
            .pid_namespace = hello.pid_namespace,
            .pidfd = std::move(*pidfd),
            .connection = std::move(connection)};
    ++joined_;
    const auto theirs = steady_clock::now() + milliseconds(hello.left_ms);
    if (!deadline_.is_before(theirs)) {
      deadline_ = deadline_.at_most(theirs);
      const milliseconds limit(hello.limit_ms);
      limit_text_ = name_duration(limit);
      if (limit != meeting_.timeout) limit_text_ += " (rank " + std::to_string(rank) + "'s limit)";
    }
    return {};
  }

  /// A peer sends nothing before the welcome but an error; anything else ends the meeting.
  Status check_peers() {
    if (is_doomed_) return {};
    for (PeerConnection& peer : peers_) {
      if (peer.rank < 0) continue;
      const int number = meeting_.number_of(peer.rank);
      const std::string who = "rank " + std::to_string(number) + " " + pid_text(peer.pid);
      auto received = peer.connection.try_receive();
      pollfd ended{peer.pidfd.get(), POLLIN, 0};
      const bool has_ended = !received.ok() || poll(&ended, 1, 0) > 0;
      if (is_roll_call() && (has_ended || *received)) {
        peer = {};  // it has left the roll call: it may come again
        --joined_;
        continue;
      }
      if (received.ok() && *received && (*received)->frame.kind == FrameKind::kError) {
        meeting_.facts.heard = true;
        Status why = unpack_status((*received)->frame.payload);
        return Status(why.code(), "rank " + std::to_string(number) + ": " + why.message());
      }
      if (received.ok() && *received) {
        return Status(Code::kBootstrap, who + " spoke before it was welcomed");
      }
      if (!received.ok() && received.status().code() != Code::kPeerDied) {
        return Status(received.status().code(),
                      name_here() + ": receiving from " + who + ": " + received.status().message());
      }
      const char* const moment = "while the ranks were meeting";
      if (!received.ok()) return lost_peer(who, "ended", moment, received.status());
      if (has_ended) return Status(Code::kPeerDied, who + " ended " + moment);
    }
    return {};
  }

  std::string inherited_text() const {
    if (!meeting_.identity.by_launcher) return "";
    return "; if one of them has started the other, " + inherited_remedy();
  }

  /// " on 10.77.0.2": pids are of hosts. `host_of` is for the one at the socket's other end, or this.
  std::string place_text(int fd, std::string (*host_of)(int fd)) const {
    return meeting_.rendezvous.is_tcp() ? " on " + host_of(fd) : "";
  }

  static void refuse(Connection& connection, const Status& why) {
    if (!connection.is_open()) return;
    (void)connection.send(FrameKind::kError, 0, pack_status(why), {}, steady_clock::now());
  }

  static void name_meeting(Connection& connection, const std::string& name) {
    if (!connection.is_open()) return;
    (void)connection.send(FrameKind::kOtherName, 0, name, {}, steady_clock::now());
  }

  const Meeting& meeting_;
  const Listener& listener_;
  const int world_size_;
  const Expected expected_;
  const steady_clock::time_point began_;
  Deadline deadline_;
  InheritedRank inherited_;
  std::string limit_text_;
  bool has_warned_ = false;  // of missing ranks, or need not
  int joined_ = 0;
  bool peer_is_ready_ = false;
  bool is_over_ = false;    // a roll call whose deadline has passed
  bool is_doomed_ = false;  // this rank has failed: a peer's failure makes no difference
  uint64_t rejected_ = 0;
  std::string last_rejected_;
  std::vector<PeerConnection> peers_;  // by rank; rank -1: not yet connected; entry 0 stays empty
  PendingConnections pending_;
};

}  // namespace

Result<std::vector<PeerConnection>> accept_ranks(const Meeting& meeting, const Listener& listener) {
  return Acceptor(meeting, listener).run();
}

}  // namespace rondo::comm
