// The output of ranks and agents on its way to the launcher's own: whole lines. Binary safe. Never blocks, so
// that a reader that has stopped reading cannot keep the launcher from its signals and deadlines.
#pragma once

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace rondo::run {

/// Reads once from a descriptor that is readable, and calls `feed` with the bytes. False: its end.
template <class Feed>
bool read_some(int fd, const Feed& feed) {
  std::array<char, 65536> bytes;
  const ssize_t got = read(fd, bytes.data(), bytes.size());
  if (got > 0) feed(std::string_view(bytes.data(), static_cast<size_t>(got)));
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

/// One of the launcher's own output streams: a queue that is written when poll() says so.
class Sink {
 public:
  explicit Sink(int fd) : fd_(fd) {}
  int fd() const { return fd_; }
  bool has_work() const { return !queue_.empty(); }
  /// Whether sources should rest until the reader has caught up.
  bool is_full() const { return queue_.size() > kFullBytes; }
  void push(std::string_view text);
  /// Writes a piece that does not block after POLLOUT; drops everything once that has failed.
  void write_some();
  /// Why output was lost, as an errno; 0: nothing was. EPIPE: its reader is gone.
  int error() const { return error_; }

 private:
  static constexpr size_t kFullBytes = 1 << 20;
  int fd_;
  bool broken_ = false;
  int error_ = 0;
  std::string queue_;
};

/// Cuts a stream into lines, which `print` gets with their end.
class LineCutter {
 public:
  struct Rules {
    /// Bytes of a line without its end. A longer one is cut, so that it does not fill the memory.
    size_t longest = 1 << 20;
    /// Of a line that is cut, `print` gets one byte more than the longest, and the rest is dropped.
    /// Otherwise the rest is the next line.
    bool drops_rest = false;
    /// What ends in a carriage return, as progress bars do, is printed at once.
    bool is_terminal = false;
  };
  LineCutter(Rules rules, std::function<void(std::string_view)> print)
      : rules_(rules), print_(std::move(print)) {}
  void feed(std::string_view bytes);
  /// The end: what is left becomes a line.
  void finish();

 private:
  Rules rules_;
  std::function<void(std::string_view)> print_;
  std::string partial_;
};

}  // namespace rondo::run
