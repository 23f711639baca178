// For programs: at their beginning, that stdin, stdout and stderr are theirs; at their end, whether
// what they printed has arrived.
#pragma once

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "rondo/status.hpp"

namespace rondo::comm {

/// First of all in main(). Opens those of the three that the program was started without, which the
/// next file or socket would be instead: stdin empty, stderr to nowhere, and stdout so that printing
/// fails.
inline void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    // The lowest that is free is the one that is opened.
    if (fcntl(fd, F_GETFD) == -1) (void)open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
  }
}

/// Not ok where something that was printed, through std::cout too, could not be written: a full
/// disk.
inline Status flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return {Code::kSystem, std::string("cannot write to stdout: ") +
                             (errno != 0 ? std::strerror(errno) : "write error")};
}

}  // namespace rondo::comm
