// Where the ranks of one communicator meet: a socket in a private directory, an abstract socket
// with a random name, or a TCP port. Does not know what the sockets carry.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "comm/bootstrap/connection/closed_in_children.hpp"
#include "comm/bootstrap/connection/connection.hpp"
#include "comm/bootstrap/connection/tcp.hpp"
#include "comm/bootstrap/identity/environment.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// Prefixes of Identity::rendezvous; without one it is a directory.
inline const std::string kAbstractScheme = "abstract:";

/// Letters, digits, '_', '-', '.', 1 to 64 of them, not starting with a dot.
Status check_name(const std::string& name);

/// Rank 0's socket; at its end it removes what it made in a directory, and the directory, if rondo
/// made that and no other meeting is there.
class Listener {
 public:
  explicit Listener(transport::UniqueFd socket, std::shared_ptr<void> directory_lock = {})
      : directory_lock_(std::move(directory_lock)),
        socket_(std::move(socket)),
        in_children_(socket_.get()) {}
  int fd() const { return socket_.get(); }

 private:
  std::shared_ptr<void> directory_lock_;  // released after the socket
  transport::UniqueFd socket_;
  ClosedInChildren in_children_;  // a child that outlives this process must not keep the port open
};

/// One meeting place. One thread: a name that is not known yet is resolved while the ranks meet.
class Rendezvous {
 public:
  /// kInvalidArgument: not an address, or one that other hosts reach while the job has no secret.
  static Result<Rendezvous> resolve(const Identity& identity, const std::string& name);

  /// Nothing: another process listens here, or the directory has just been removed; try again. An
  /// error: others can use the directory, or the address is not this host's.
  Result<std::optional<Listener>> listen() const;
  /// A connected non-blocking socket; nothing while there is no listener.
  Result<std::optional<transport::UniqueFd>> try_connect(Deadline deadline) const;

  bool is_tcp() const { return scheme_ == Scheme::kTcp; }
  /// For messages: "/tmp/x/world.sock", "tcp://127.0.0.1:29501".
  const std::string& text() const { return text_; }
  /// "; the host of ... is not known here: ...", or that no other host reaches it, or nothing: for
  /// errors at the deadline.
  std::string trouble() const { return tcp_ ? tcp_->trouble() : ""; }

 private:
  enum class Scheme { kDirectory, kAbstract, kTcp };
  Scheme scheme_ = Scheme::kDirectory;
  std::string text_, place_, name_;
  std::shared_ptr<TcpPlace> tcp_;
  std::shared_ptr<const transport::UniqueFd> listening_;  // Identity::listening
};

/// The process at the other end of a unix socket. pid 0: its PID namespace is not visible here.
struct Credentials {
  pid_t pid;
  uid_t uid;
};
Result<Credentials> credentials_of(int socket);

}  // namespace rondo::comm
