// The place on the file system where the ranks of one communicator meet: a private directory, in it
// a socket and a lock named after the communicator. Knows nothing of what is said over the socket.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "rondo/status.hpp"
#include "transport/shm/unique_fd.hpp"

namespace rondo::comm {

/// Letters, digits, '_', '-', '.', 1 to 64 of them, not starting with a dot.
Status check_name(const std::string& name);

/// Rank 0's side. The lock is held as long as the socket listens, so a socket without a holder of
/// its lock is stale, whatever its owner's pid has become since. Removes what it made.
class Listener {
 public:
  /// Creates the directory where it is missing. Nothing: another process listens here, or the
  /// directory has just been removed; try again. An error: the directory is not ours alone.
  static Result<std::optional<Listener>> open(const std::string& directory,
                                              const std::string& name);
  ~Listener();
  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;

  int fd() const { return socket_.get(); }

 private:
  Listener() = default;
  std::string directory_path_, name_;
  bool made_directory_ = false;
  transport::UniqueFd directory_, lock_, socket_;
};

/// The other ranks' side: a connected non-blocking socket; nothing while nobody listens.
Result<std::optional<transport::UniqueFd>> try_connect(const std::string& directory,
                                                       const std::string& name);

/// What the kernel says of the process at the other end.
struct Credentials {
  pid_t pid;
  uid_t uid;
};
Result<Credentials> credentials_of(int socket);

}  // namespace rondo::comm
