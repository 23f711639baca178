// Line cutting and the writing of it.
#include "comm/launch/output_lines.hpp"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace rondo::run {

void Sink::push(std::string_view text) {
  if (!broken_) queue_.append(text);
}

void Sink::write_some() {
  // A pipe that polls writable takes PIPE_BUF bytes without blocking, also when it is in blocking
  // mode. Whole lines, if they fit: the other stream may lead to the same terminal.
  size_t bytes = std::min<size_t>(queue_.size(), PIPE_BUF);
  if (bytes < queue_.size()) {
    const size_t end = queue_.find_last_of("\r\n", bytes - 1);
    if (end != std::string::npos) bytes = end + 1;
  }
  const ssize_t sent = write(fd_, queue_.data(), bytes);
  if (sent > 0) {
    queue_.erase(0, static_cast<size_t>(sent));
  } else if (sent < 0 && errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    error_ = errno;
    queue_.clear();
  }
}

void LineCutter::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const size_t room = rules_.drops_rest ? rules_.longest + 1 - partial_.size() : bytes.size();
    partial_.append(bytes.substr(0, std::min(end, room)));
    if (end == std::string_view::npos) {
      if (rules_.is_terminal && partial_.ends_with('\r')) {
        print_(partial_);
        partial_.clear();
      }
      if (!rules_.drops_rest && partial_.size() >= rules_.longest) finish();
      return;
    }
    bytes.remove_prefix(end + 1);
    print_(partial_ + "\n");
    partial_.clear();
  }
}

void LineCutter::finish() {
  if (partial_.empty()) return;
  print_(partial_ + "\n");
  partial_.clear();
}

}  // namespace rondo::run
