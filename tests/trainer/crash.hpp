// Programs that die while they save: a forked child, killed at a chosen point. What the machine
// would lose in a power cut is not tried; that files are synced before they are renamed is checked
// by operations_of().
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/harness/catch.hpp"
#include "trainer/files/disk.hpp"

namespace rondo::trainer::testing {

/// The signal that ended a child that ran `body`; 0 when it came to its end.
inline int signal_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    for (const int signal : {SIGXFSZ, SIGABRT}) std::signal(signal, SIG_DFL);  // Catch2 has its own
    body();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/// Kills this process just before its change number `nth`, from 0, to the disk.
inline void die_before_change(size_t nth) {
  static size_t left;
  left = nth;
  watch_disk([](const char*, const std::string&) {
    if (left-- == 0) raise(SIGKILL);
  });
}

/// The same with a child; false when it made fewer changes and came to its end.
inline bool dies_before_change(size_t nth, const std::function<void()>& body) {
  return signal_of_child([&] {
           die_before_change(nth);
           body();
         }) == SIGKILL;
}

/// Files of this process cannot grow past `bytes`. A file that would is SIGXFSZ; where that is
/// ignored, write() fails after a part.
inline void limit_file_size(size_t bytes) {
  const rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_FSIZE, &limit);
}

/// Kills a child when a file of its grows past `bytes`; false when none did.
inline bool dies_at_file_size(size_t bytes, const std::function<void()>& body) {
  return signal_of_child([&] {
           limit_file_size(bytes);
           body();
         }) == SIGXFSZ;
}

/// Runs `body` in a child, as on a disk that is full after `bytes` of a file. It must say true.
inline void check_on_full_disk(size_t bytes, const std::function<bool()>& body) {
  const int signal = signal_of_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    limit_file_size(bytes);
    if (!body()) std::abort();
  });
  CHECK(signal == 0);
}

/// All changes that `body` makes to the disk, as (operation, path).
inline std::vector<std::pair<std::string, std::string>> operations_of(
    const std::function<void()>& body) {
  static std::vector<std::pair<std::string, std::string>> seen;
  seen.clear();
  watch_disk(
      [](const char* operation, const std::string& path) { seen.emplace_back(operation, path); });
  body();
  watch_disk(nullptr);
  return seen;
}

}  // namespace rondo::trainer::testing
