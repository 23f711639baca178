// A terminal for programs that check whether they write to one.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace rondo::testing {

/// A pseudo terminal. Data written to path() stay until read(), up to some tens of kilobytes.
class Terminal {
 public:
  Terminal() : master_(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)) {
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) fail();
    // While it is open, data written to it stay.
    slave_ = open(path().c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave_ < 0) fail();
  }
  ~Terminal() {
    close(slave_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::string path() const { return ptsname(master_); }
  std::string read() const {
    std::string text;
    char piece[4096];
    for (ssize_t got; (got = ::read(master_, piece, sizeof(piece))) > 0;)
      text.append(piece, static_cast<size_t>(got));
    return text;
  }
  /// As keys that are pressed: "\x1a" is Ctrl-Z.
  void press(const std::string& keys) const {
    if (::write(master_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size())) fail();
  }

 private:
  [[noreturn]] static void fail() { throw std::runtime_error("no pseudo terminal"); }
  int master_ = -1, slave_ = -1;
};

}  // namespace rondo::testing
