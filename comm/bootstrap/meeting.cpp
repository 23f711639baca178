// Rank 0's reception, and the way to it. Whoever connects is a stranger until its uid, its hello
// and its secret fit; a stranger costs one descriptor, 64 bytes and at most kHelloLimit, and cannot
// end the job.
#include "comm/bootstrap/meeting.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <thread>

#include "comm/bootstrap/bootstrap.hpp"
#include "comm/bootstrap/rendezvous.hpp"

namespace rondo::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using transport::UniqueFd;

constexpr milliseconds kHelloLimit{5000};
constexpr milliseconds kRetryEvery{5};
constexpr size_t kStrangersBeyondWorld = 64;
constexpr int kMaxDrops = 3;

std::string place_of(const Invitation& invitation) {
  return invitation.identity.rendezvous + "/" + invitation.name + ".sock";
}

std::string pid_text(pid_t pid) { return "(pid " + std::to_string(pid) + ")"; }

class Reception {
 public:
  Reception(const Invitation& invitation, const Listener& listener)
      : invitation_(invitation),
        listener_(listener),
        world_size_(invitation.identity.world_size),
        digest_(digest_of(invitation.identity.secret)),
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
    pid_t pid;
    Deadline deadline;
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
                                        "; rank 0 waited at " + place_of(invitation_));
  }

  Status accept_all() {
    while (true) {
      UniqueFd socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) {
        if (errno == EAGAIN) return {};
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return system_status("rank 0 cannot accept another rank", errno);
      }
      auto credentials = credentials_of(socket.get());
      if (!credentials.ok() || credentials->uid != geteuid()) continue;
      if (strangers_.size() >= static_cast<size_t>(world_size_) + kStrangersBeyondWorld) {
        strangers_.pop_front();
      }
      strangers_.push_back({.socket = std::move(socket),
                            .pid = credentials->pid,
                            .deadline = steady_clock::now() + kHelloLimit});
    }
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
    switch (judge(hello, static_cast<uint32_t>(world_size_), digest_)) {
      case HelloVerdict::kAccept:
        return seat(hello, stranger.pid, std::move(connection));
      case HelloVerdict::kGarbage:
        return {};
      case HelloVerdict::kVersion:
        refuse(connection,
               Status(Code::kBootstrap,
                      "rank 0 speaks version " + std::to_string(kProtocolVersion) +
                          " of the bootstrap, this rank version " + std::to_string(hello.version) +
                          ": all ranks must use the same rondo"));
        return {};
      case HelloVerdict::kSecret:
        refuse(connection, Status(Code::kBootstrap,
                                  "rank 0 has another RONDO_SECRET than this rank: it belongs to "
                                  "another job, or the variable was not passed on"));
        return {};
      case HelloVerdict::kWorldSize:
        break;
    }
    Status status(Code::kBootstrap, "rank " + std::to_string(hello.rank) + " " +
                                        pid_text(stranger.pid) + " says that there are " +
                                        std::to_string(hello.world_size) + " ranks, rank 0 says " +
                                        std::to_string(world_size_));
    refuse(connection, status);
    return status;
  }

  Status seat(const Hello& hello, pid_t pid, Connection connection) {
    const int rank = static_cast<int>(hello.rank);
    Guest& guest = guests_[hello.rank];
    Status status;
    if (rank == 0 || guest.rank >= 0) {
      status =
          Status(Code::kBootstrap, "rank " + std::to_string(rank) + " was given twice: to pid " +
                                       std::to_string(rank == 0 ? getpid() : guest.pid) +
                                       " and to pid " + std::to_string(pid));
    } else if (pid != static_cast<pid_t>(hello.pid)) {
      status = Status(Code::kUnavailable, "rank " + std::to_string(rank) + " is pid " +
                                              std::to_string(hello.pid) + " to itself but pid " +
                                              std::to_string(pid) +
                                              " to rank 0: all ranks must share one PID namespace");
    }
    if (!status.ok()) {
      refuse(connection, status);
      return status;
    }
    auto pidfd = open_pidfd(pid, rank);
    if (!pidfd.ok()) return pidfd.status();
    guest = {
        .rank = rank, .pid = pid, .pidfd = std::move(*pidfd), .connection = std::move(connection)};
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
  const std::array<unsigned char, 32> digest_;
  Deadline deadline_;
  std::string limit_text_;
  int come_ = 0;
  std::vector<Guest> guests_;  // by rank; rank -1: not there yet; place 0 stays empty
  std::deque<Stranger> strangers_;
};

/// One attempt to join. Nothing: nobody there, or dropped without a word; try again.
class Visit {
 public:
  Visit(const Invitation& invitation, Deadline deadline)
      : invitation_(invitation), deadline_(deadline) {}

  Result<std::optional<Admission>> attempt() {
    auto socket = try_connect(invitation_.identity.rendezvous, invitation_.name);
    if (!socket.ok()) return socket.status();
    if (!*socket) return std::optional<Admission>();
    const int fd = (*socket)->get();
    auto credentials = credentials_of(fd);
    if (!credentials.ok()) return credentials.status();
    if (credentials->uid != geteuid()) {
      return Status(Code::kBootstrap, "the socket " + place_of(invitation_) + " belongs to uid " +
                                          std::to_string(credentials->uid));
    }
    auto pidfd = open_pidfd(credentials->pid, 0);
    if (!pidfd.ok()) return pidfd.status();
    if (!say_hello(fd)) return std::optional<Admission>();
    const size_t all_blobs = static_cast<size_t>(invitation_.identity.world_size) *
                             (Bootstrap::kMaxBlobBytes + sizeof(uint32_t));
    return wait_for_welcome({.rank = 0,
                             .pid = credentials->pid,
                             .pidfd = std::move(*pidfd),
                             .connection = Connection(std::move(**socket), all_blobs)});
  }

  int drops() const { return drops_; }

 private:
  bool say_hello(int fd) {
    const Identity& identity = invitation_.identity;
    const auto as_ms = [](auto duration) {
      const auto whole = std::chrono::ceil<milliseconds>(duration).count();
      return static_cast<uint32_t>(std::clamp<int64_t>(whole, 0, UINT32_MAX));
    };
    const Hello hello{.magic = kHelloMagic,
                      .version = kProtocolVersion,
                      .rank = static_cast<uint32_t>(identity.rank),
                      .world_size = static_cast<uint32_t>(identity.world_size),
                      .pid = static_cast<uint32_t>(getpid()),
                      .limit_ms = as_ms(invitation_.timeout),
                      .left_ms = as_ms(deadline_ - steady_clock::now()),
                      .secret_digest = digest_of(identity.secret)};
    // 64 bytes always fit into the buffer of a new socket.
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) return true;
    ++drops_;
    return false;
  }

  Result<std::optional<Admission>> wait_for_welcome(Guest host) {
    const std::string who = "rank 0 " + pid_text(host.pid);
    bool ended = false;
    while (true) {
      auto received = host.connection.try_receive();
      if (!received.ok() && received.status().code() != Code::kPeerDied) return received.status();
      if (received.ok() && *received) {
        Frame& frame = (*received)->frame;
        if (frame.kind == Kind::kError) return unpack_status(frame.payload);
        if (frame.kind == Kind::kWelcome) {
          return std::optional<Admission>(
              Admission{.host = std::move(host), .welcome = std::move(frame.payload)});
        }
        return Status(Code::kBootstrap, who + " answered the hello with " + to_string(frame.kind));
      }
      if (!received.ok()) {
        ++drops_;
        pollfd process{host.pidfd.get(), POLLIN, 0};
        // A killed process's sockets close a little before it is seen to have ended.
        auto dead = host.pidfd.valid()
                        ? poll_until({&process, 1}, steady_clock::now() + milliseconds(50))
                        : Result<bool>(false);
        if (!dead.ok()) return dead.status();
        ended = *dead;
        if (!ended) return std::optional<Admission>();
      }
      if (ended) return Status(Code::kPeerDied, who + " ended while the ranks were meeting");
      pollfd watched[2] = {{host.connection.fd(), POLLIN, 0}, {host.pidfd.get(), POLLIN, 0}};
      auto ready = poll_until(watched, deadline_ + kVerdictGrace);
      if (!ready.ok()) return ready.status();
      if (!*ready) {
        return Status(Code::kBootstrap, who + " at " + place_of(invitation_) +
                                            " did not answer within " +
                                            name_duration(invitation_.timeout));
      }
      ended = watched[1].revents != 0;
    }
  }

  const Invitation& invitation_;
  const Deadline deadline_;
  int drops_ = 0;
};

}  // namespace

Result<std::vector<Guest>> host_meeting(const Invitation& invitation) {
  const Deadline deadline = steady_clock::now() + invitation.timeout;
  Visit visit(invitation, deadline);
  while (true) {
    auto listener = Listener::open(invitation.identity.rendezvous, invitation.name);
    if (!listener.ok()) return listener.status();
    if (*listener) return Reception(invitation, **listener).run();
    // Another rank 0 is receiving here: knocking tells it, and so everybody, that there are two.
    auto answer = visit.attempt();
    if (!answer.ok()) return answer.status();
    if (steady_clock::now() >= deadline) {
      return Status(Code::kBootstrap, "rank 0 could not listen at " + place_of(invitation) +
                                          " within " + name_duration(invitation.timeout) +
                                          ": another process holds its lock");
    }
    std::this_thread::sleep_for(kRetryEvery);
  }
}

Result<Admission> join_meeting(const Invitation& invitation) {
  const Deadline deadline = steady_clock::now() + invitation.timeout;
  Visit visit(invitation, deadline);
  while (true) {
    auto admission = visit.attempt();
    if (!admission.ok()) return admission.status();
    if (*admission) return std::move(**admission);
    if (visit.drops() >= kMaxDrops) {
      return Status(Code::kBootstrap, "rank 0 at " + place_of(invitation) +
                                          " closed the connection of rank " +
                                          std::to_string(invitation.identity.rank) + " " +
                                          std::to_string(kMaxDrops) + " times without a reason");
    }
    if (steady_clock::now() >= deadline) {
      return Status(Code::kBootstrap,
                    "rank 0 of " + std::to_string(invitation.identity.world_size) +
                        " did not come within " + name_duration(invitation.timeout) + "; rank " +
                        std::to_string(invitation.identity.rank) + " looked for it at " +
                        place_of(invitation));
    }
    std::this_thread::sleep_for(kRetryEvery);
  }
}

std::string name_ranks(const std::vector<int>& ranks) {
  constexpr size_t kMost = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t shown = std::min(ranks.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > shown) text += " and " + std::to_string(ranks.size() - shown) + " more";
  return text;
}

std::string name_duration(milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(duration.count()) / 1000.0);
  return text;
}

Result<UniqueFd> open_pidfd(pid_t pid, int rank) {
  if (pid == getpid()) return UniqueFd();
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (pidfd.valid()) return pidfd;
  const std::string who = "rank " + std::to_string(rank) + " " + pid_text(pid);
  if (errno == ESRCH) return Status(Code::kPeerDied, who + " ended while the ranks were meeting");
  return system_status("cannot watch " + who + ": pidfd_open", errno);
}

}  // namespace rondo::comm
