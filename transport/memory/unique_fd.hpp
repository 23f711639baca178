// UniqueFd: the owner of one file descriptor. Not a stream and not a socket: it closes, and that is
// all.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rondo::transport {

/// Closes its descriptor when it dies. Movable, not copyable; -1 is "none". Thread-compatible. Its
/// descriptor is none of stdin's, stdout's and stderr's: the kernel gives these to whoever comes
/// first where a program was started without them, and what is printed would be written there.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(beyond_stdio(fd)) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  /// Hands the descriptor over: the caller closes it.
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = beyond_stdio(fd);
  }

 private:
  /// -1, and errno, where there is no descriptor left.
  static int beyond_stdio(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    ::close(fd);
    errno = error;
    return moved;
  }

  int fd_ = -1;
};

}  // namespace rondo::transport
