// Where the ranks of one communicator meet: a socket in a private directory, an abstract socket
// with a random name, or a TCP port. Does not know what the sockets carry.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/bootstrap/connection.hpp"
#include "comm/bootstrap/environment.hpp"
#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::comm {

/// Prefixes of Identity::rendezvous; without one it is a directory.
inline const std::string kTcpScheme = "tcp://", kAbstractScheme = "abstract:";
inline bool is_tcp(const std::string& rendezvous) { return rendezvous.starts_with(kTcpScheme); }

/// Letters, digits, '_', '-', '.', 1 to 64 of them, not starting with a dot.
Status check_name(const std::string& name);

/// Rank 0's socket; at its end it removes what it made in a directory, and the directory, if rondo
/// made that and no other meeting is there.
class Listener {
 public:
  explicit Listener(transport::UniqueFd socket, std::shared_ptr<void> directory_lock = {})
      : directory_lock_(std::move(directory_lock)), socket_(std::move(socket)) {}
  int fd() const { return socket_.get(); }

 private:
  std::shared_ptr<void> directory_lock_;  // released after the socket
  transport::UniqueFd socket_;
};

/// One meeting place; a host's name is resolved once, in resolve().
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

 private:
  enum class Scheme { kDirectory, kAbstract, kTcp };
  Scheme scheme_ = Scheme::kDirectory;
  std::string text_, place_, name_;
  sockaddr_storage address_{};
  socklen_t address_bytes_ = 0;
};

/// A TCP socket on `address`, as Rendezvous::listen() and try_connect() want it.
Result<std::optional<transport::UniqueFd>> listen_tcp(const sockaddr_storage& address,
                                                      socklen_t bytes, const std::string& text);
Result<std::optional<transport::UniqueFd>> connect_tcp(const sockaddr_storage& address,
                                                       socklen_t bytes, const std::string& text,
                                                       Deadline deadline);
/// For a TCP connection that is kept: sends small frames at once, and fails with kPeerDied when the
/// other host has vanished: `limit` after data that it does not acknowledge, and at most 1 s later
/// when there is none. A peer that lets a full window of data wait for so long fails too. `limit` is
/// at least 1 s.
Status set_liveness(int socket, std::chrono::milliseconds limit);
/// "HOST:PORT" or "[HOST]:PORT" as an address; an error names `text`.
Result<socklen_t> resolve_tcp(const std::string& text, sockaddr_storage& into);
bool is_loopback(const sockaddr_storage& address);
/// Of the other end of a socket: "127.0.0.1:40312", or "an unknown place".
std::string peer_address(int socket);

/// The process at the other end of a unix socket. pid 0: its PID namespace is not visible here.
struct Credentials {
  pid_t pid;
  uid_t uid;
};
Result<Credentials> credentials_of(int socket);

}  // namespace rondo::comm
