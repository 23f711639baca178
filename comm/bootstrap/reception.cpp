// Rank 0's reception. Whoever connects is a stranger until its hello and its proof of the secret
// fit, and on a unix socket its uid; a stranger costs one descriptor, 216 bytes and at most
// kHelloLimit, and cannot end the job.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <string>

#include "comm/bootstrap/bootstrap.hpp"
#include "comm/bootstrap/meeting.hpp"

namespace rondo::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

constexpr milliseconds kHelloLimit{5000};
constexpr size_t kStrangersBeyondWorld = 64;
// Connections taken in before those that are there are heard.
constexpr int kMostAtOnce = 256;

class Reception {
 public:
  Reception(const Invitation& invitation, const Listener& listener)
      : invitation_(invitation),
        listener_(listener),
        world_size_(invitation.identity.world_size),
        expected_{.world_size = static_cast<uint32_t>(world_size_),
                  .name = pack_name(invitation.name),
                  .key = key_of(invitation.identity.secret)},
        deadline_(steady_clock::now() + invitation.timeout),
        limit_text_(name_duration(invitation.timeout)),
        guests_(static_cast<size_t>(world_size_)) {}

  Result<std::vector<Guest>> run() {
    Status status = gather();
    if (!status.ok()) {
      for (Guest& guest : guests_) refuse(guest.connection, status);
      return status;
    }
    guests_.erase(guests_.begin());
    return std::move(guests_);
  }

 private:
  struct Stranger {
    UniqueFd socket;
    pid_t visible_pid;  // 0: it cannot be seen from here
    Deadline deadline;
    Challenge challenge;
    size_t received = 0;
    Hello hello{};
  };

  Status gather() {
    while (come_ + 1 < world_size_) {
      RONDO_RETURN_IF_ERROR(wait());
      RONDO_RETURN_IF_ERROR(accept_all());
      RONDO_RETURN_IF_ERROR(hear_strangers());
      RONDO_RETURN_IF_ERROR(check_guests());
    }
    return {};
  }

  /// Until something happens, a stranger's time is over, or the deadline.
  Status wait() {
    std::vector<pollfd> watched{{listener_.fd(), POLLIN, 0}};
    Deadline until = deadline_;
    for (const Stranger& stranger : strangers_) {
      watched.push_back({stranger.socket.get(), POLLIN, 0});
      until = std::min(until, stranger.deadline);
    }
    for (const Guest& guest : guests_) {
      watched.push_back({guest.connection.fd(), POLLIN, 0});
      watched.push_back({guest.pidfd.get(), POLLIN, 0});
    }
    auto ready = poll_until(watched, until);
    if (!ready.ok()) return ready.status();
    if (*ready || steady_clock::now() < deadline_) return {};
    std::vector<int> missing;
    for (int rank = 1; rank < world_size_; ++rank) {
      if (guests_[static_cast<size_t>(rank)].rank < 0) missing.push_back(rank);
    }
    return Status(Code::kBootstrap, name_ranks(missing) + " of " + std::to_string(world_size_) +
                                        " did not come within " + limit_text_ +
                                        "; rank 0 waited at " + invitation_.venue.text() +
                                        turned_away());
  }

  /// A rank that did not come may have been among them.
  std::string turned_away() const {
    if (turned_away_ == 0) return "";
    return "; it turned away " +
           (turned_away_ == 1 ? "a caller"
                              : std::to_string(turned_away_) + " callers, the last one") +
           " " + last_turned_away_;
  }

  /// With a reason that it is told. What it says of itself is not proven.
  void turn_away(Connection& connection, const Stranger& stranger, const Status& why,
                 const std::string& what) {
    const std::string from = invitation_.venue.is_tcp() ? "at " + peer_address(connection.fd())
                             : stranger.visible_pid > 0 ? pid_text(stranger.visible_pid)
                                                        : "in another PID namespace";
    ++turned_away_;
    last_turned_away_ =
        from + " that called itself rank " + std::to_string(stranger.hello.rank) + " and " + what;
    refuse(connection, why);
  }

  Status accept_all() {
    for (int turn = 0; turn < kMostAtOnce; ++turn) {
      UniqueFd socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) {
        if (errno == EAGAIN) return {};
        if (errno == EINTR || errno == ECONNABORTED) continue;
        const int error = errno;
        if (error == EMFILE || error == ENFILE) {
          // Said also where nobody waits.
          pollfd waiting{listener_.fd(), POLLIN, 0};
          if (poll(&waiting, 1, 0) == 0) return {};
          if (!strangers_.empty()) {
            strangers_.pop_front();
            continue;
          }
        }
        return system_status("rank 0 cannot accept another rank", error);
      }
      pid_t visible_pid = 0;
      if (!invitation_.venue.is_tcp()) {
        auto credentials = credentials_of(socket.get());
        if (!credentials.ok() || credentials->uid != geteuid()) continue;
        visible_pid = credentials->pid;
      }
      // So few bytes always fit into the buffer of a new socket.
      const Challenge challenge = make_challenge();
      if (send(socket.get(), &challenge, sizeof challenge, MSG_NOSIGNAL) != sizeof challenge) {
        continue;
      }
      if (strangers_.size() >= static_cast<size_t>(world_size_) + kStrangersBeyondWorld) {
        strangers_.pop_front();
      }
      strangers_.push_back({.socket = std::move(socket),
                            .visible_pid = visible_pid,
                            .deadline = steady_clock::now() + kHelloLimit,
                            .challenge = challenge});
    }
    return {};
  }

  Status hear_strangers() {
    std::deque<Stranger> still_strange;
    for (Stranger& stranger : strangers_) {
      char* into = reinterpret_cast<char*>(&stranger.hello) + stranger.received;
      const ssize_t got =
          recv(stranger.socket.get(), into, sizeof(Hello) - stranger.received, MSG_DONTWAIT);
      if (got > 0) stranger.received += static_cast<size_t>(got);
      const bool waiting = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
      if (stranger.received == sizeof(Hello)) {
        RONDO_RETURN_IF_ERROR(admit(stranger));
      } else if (waiting && steady_clock::now() < stranger.deadline) {
        still_strange.push_back(std::move(stranger));
      }
    }
    strangers_ = std::move(still_strange);
    return {};
  }

  /// An error is one that the whole job must hear; a bad stranger is sent away and forgotten.
  Status admit(Stranger& stranger) {
    const Hello& hello = stranger.hello;
    Connection connection(std::move(stranger.socket), Bootstrap::kMaxBlobBytes);
    const HelloVerdict verdict = judge(hello, stranger.challenge, expected_);
    switch (verdict) {
      case HelloVerdict::kGarbage:
        return {};
      case HelloVerdict::kVersion:
        turn_away(connection, stranger, other_version(kProtocolVersion, hello.version),
                  "uses another version of rondo");
        return {};
      case HelloVerdict::kSecret:
        turn_away(connection, stranger,
                  Status(Code::kBootstrap,
                         "rank 0 has another secret than this rank: it belongs to another job, or "
                         "RONDO_SECRET or RONDO_SECRET_FILE is not the same on both"),
                  "has another secret: RONDO_SECRET or RONDO_SECRET_FILE must be the same on all "
                  "ranks");
        return {};
      case HelloVerdict::kName:
        (void)connection.send(Kind::kOtherName, 0, {}, {}, steady_clock::now());
        return {};
      case HelloVerdict::kAccept:
      case HelloVerdict::kWorldSize:
        break;
    }
    const Digest proof = counter_proof(hello, stranger.challenge, expected_.key);
    (void)connection.send(Kind::kProof, 0,
                          {reinterpret_cast<const char*>(proof.data()), proof.size()}, {},
                          steady_clock::now());
    if (verdict == HelloVerdict::kAccept) {
      return seat(hello, stranger.visible_pid, std::move(connection));
    }
    Status status(Code::kBootstrap, "rank " + std::to_string(hello.rank) + " " +
                                        pid_text(static_cast<pid_t>(hello.pid)) +
                                        " says that there are " + std::to_string(hello.world_size) +
                                        " ranks, rank 0 says " + std::to_string(world_size_));
    refuse(connection, status);
    return status;
  }

  Status seat(const Hello& hello, pid_t visible_pid, Connection connection) {
    const int rank = static_cast<int>(hello.rank);
    const auto pid = static_cast<pid_t>(hello.pid);
    Guest& guest = guests_[hello.rank];
    if (rank == 0 || guest.rank >= 0) {
      Status twice(Code::kBootstrap, "rank " + std::to_string(rank) + " was given twice: to pid " +
                                         std::to_string(rank == 0 ? getpid() : guest.pid) +
                                         " and to pid " + std::to_string(pid));
      refuse(connection, twice);
      return twice;
    }
    auto pidfd = open_pidfd(visible_pid, rank);
    if (!pidfd.ok()) return pidfd.status();
    guest = {.rank = rank,
             .pid = pid,
             .pid_namespace = hello.pid_namespace,
             .pidfd = std::move(*pidfd),
             .connection = std::move(connection)};
    ++come_;
    const Deadline theirs = steady_clock::now() + milliseconds(hello.left_ms);
    if (theirs < deadline_) {
      deadline_ = theirs;
      const milliseconds limit(hello.limit_ms);
      limit_text_ = name_duration(limit);
      if (limit != invitation_.timeout)
        limit_text_ += " (rank " + std::to_string(rank) + "'s limit)";
    }
    return {};
  }

  /// A guest has nothing to say until it is welcomed: what comes is its end, or why it gives up.
  Status check_guests() {
    for (Guest& guest : guests_) {
      if (guest.rank < 0) continue;
      const std::string who = "rank " + std::to_string(guest.rank) + " " + pid_text(guest.pid);
      auto received = guest.connection.try_receive();
      if (received.ok() && *received && (*received)->frame.kind == Kind::kError) {
        Status why = unpack_status((*received)->frame.payload);
        return Status(why.code(), "rank " + std::to_string(guest.rank) + ": " + why.message());
      }
      if (received.ok() && *received) {
        return Status(Code::kBootstrap, who + " spoke before it was welcomed");
      }
      if (!received.ok() && received.status().code() != Code::kPeerDied) {
        return Status(received.status().code(), who + ": " + received.status().message());
      }
      pollfd ended{guest.pidfd.get(), POLLIN, 0};
      if (!received.ok() || poll(&ended, 1, 0) > 0) {
        return Status(Code::kPeerDied, who + " ended while the ranks were meeting");
      }
    }
    return {};
  }

  static void refuse(Connection& connection, const Status& why) {
    if (!connection.is_open()) return;
    (void)connection.send(Kind::kError, 0, pack_status(why), {}, steady_clock::now());
  }

  const Invitation& invitation_;
  const Listener& listener_;
  const int world_size_;
  const Expected expected_;
  Deadline deadline_;
  std::string limit_text_;
  int come_ = 0;
  uint64_t turned_away_ = 0;
  std::string last_turned_away_;
  std::vector<Guest> guests_;  // by rank; rank -1: not there yet; place 0 stays empty
  std::deque<Stranger> strangers_;
};

}  // namespace

Result<std::vector<Guest>> receive_guests(const Invitation& invitation, const Listener& listener) {
  return Reception(invitation, listener).run();
}

}  // namespace rondo::comm
