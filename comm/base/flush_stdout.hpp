// For programs, at their end: whether what they printed has arrived.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "rondo/status.hpp"

namespace rondo::comm {

/// Not ok where something that was printed, through std::cout too, could not be written: a full
/// disk.
inline Status flush_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return {Code::kSystem, std::string("cannot write to stdout: ") +
                             (errno != 0 ? std::strerror(errno) : "write error")};
}

}  // namespace rondo::comm
