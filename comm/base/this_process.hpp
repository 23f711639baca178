// Which process this is. A forked child has copies of what its parent's threads and peers still use:
// it recognises them by comparing what they kept with this_process.
#pragma once

#include <pthread.h>
#include <unistd.h>

namespace rondo::base {

/// `forks`: how many led here from the process that called known_process() first. Process numbers
/// alone are the same in other PID namespaces.
struct OwnProcess {
  int forks;
  pid_t pid;
};

/// Of known_process(). A variable, not a function: the way of a warm call (comm/README.md) does not come
/// through here. A child changes it before it has a second thread.
inline OwnProcess this_process{};

/// From the first call on, this_process follows forks.
inline const OwnProcess& known_process() {
  [[maybe_unused]] static const int registered = [] {
    this_process.pid = ::getpid();
    return ::pthread_atfork(nullptr, nullptr, [] {
      this_process = {.forks = this_process.forks + 1, .pid = ::getpid()};
    });
  }();
  return this_process;
}

}  // namespace rondo::base
