// Where the ranks of one communicator meet: a socket in a private directory, an abstract socket
// whose name nobody can guess, or a TCP port. Knows nothing of what is said over the socket.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "comm/bootstrap/connection.hpp"
#include "comm/bootstrap/environment.hpp"
#include "rondo/status.hpp"
#include "transport/shm/unique_fd.hpp"

namespace rondo::comm {

/// What Identity::rendezvous begins with; else it is a directory.
inline const std::string kTcpScheme = "tcp://", kAbstractScheme = "abstract:";
inline bool is_tcp(const std::string& rendezvous) { return rendezvous.starts_with(kTcpScheme); }

/// Letters, digits, '_', '-', '.', 1 to 64 of them, not starting with a dot.
Status check_name(const std::string& name);

/// Rank 0's side; in a directory it removes what it made there.
class Listener {
 public:
  explicit Listener(transport::UniqueFd socket, std::shared_ptr<void> claim = {})
      : claim_(std::move(claim)), socket_(std::move(socket)) {}
  int fd() const { return socket_.get(); }

 private:
  std::shared_ptr<void> claim_;  // goes after the socket
  transport::UniqueFd socket_;
};

/// A place to meet, looked at once: a host's name is resolved here.
class Venue {
 public:
  /// kInvalidArgument: no address, or one that others reach although the job has no secret.
  static Result<Venue> find(const Identity& identity, const std::string& name);

  /// Nothing: another process listens here, or the directory has just been removed; try again. An
  /// error: the directory is not ours alone, the address is not this host's.
  Result<std::optional<Listener>> listen() const;
  /// A connected non-blocking socket; nothing while nobody listens.
  Result<std::optional<transport::UniqueFd>> try_connect(Deadline deadline) const;

  bool is_tcp() const { return kind_ == Kind::kTcp; }
  /// For messages: "/tmp/x/world.sock", "tcp://127.0.0.1:29501".
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kDirectory, kAbstract, kTcp };
  Kind kind_ = Kind::kDirectory;
  std::string text_, place_, name_;
  sockaddr_storage address_{};
  socklen_t address_bytes_ = 0;
};

/// A TCP socket on `address`, as Venue::listen() and try_connect() want it.
Result<std::optional<transport::UniqueFd>> listen_tcp(const sockaddr_storage& address,
                                                      socklen_t bytes, const std::string& text);
Result<std::optional<transport::UniqueFd>> connect_tcp(const sockaddr_storage& address,
                                                       socklen_t bytes, const std::string& text,
                                                       Deadline deadline);
/// "HOST:PORT" or "[HOST]:PORT" as an address; an error names `text`.
Result<socklen_t> resolve_tcp(const std::string& text, sockaddr_storage& into);
bool is_loopback(const sockaddr_storage& address);
/// Of the other end of a socket, "127.0.0.1:40312"; "an unknown place" where the kernel does not
/// say.
std::string peer_address(int socket);

/// What the kernel says of the process at the other end of a unix socket. pid 0: it is in a PID
/// namespace that cannot be seen from here.
struct Credentials {
  pid_t pid;
  uid_t uid;
};
Result<Credentials> credentials_of(int socket);

}  // namespace rondo::comm
