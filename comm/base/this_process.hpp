// Which process this is. A forked child has copies of what its parent's threads and peers still use:
// it recognises them by comparing what they kept with this_process().
#pragma once

#include <pthread.h>
#include <unistd.h>

namespace rondo::base {

/// `forks`: how many led here from the process that called known_process() first. Process numbers
/// alone are the same in other PID namespaces.
struct OwnProcess {
  int forks;
  pid_t pid;
  bool operator==(const OwnProcess&) const = default;
};

namespace detail {
inline OwnProcess current{};  // a child changes it before it has a second thread
}  // namespace detail

/// As of known_process(); a load.
inline const OwnProcess& this_process() { return detail::current; }

/// From the first call on, this_process() follows forks.
inline const OwnProcess& known_process() {
  [[maybe_unused]] static const int registered = [] {
    detail::current.pid = ::getpid();
    return ::pthread_atfork(nullptr, nullptr, [] {
      detail::current = {.forks = detail::current.forks + 1, .pid = ::getpid()};
    });
  }();
  return detail::current;
}

}  // namespace rondo::base
