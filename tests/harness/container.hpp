// A container, as far as ranks can tell.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>

#include "tests/harness/rank_group.hpp"

namespace rondo::testing {

/// Runs `body` as the first process of a PID namespace, in a mount namespace where /tmp is its own.
inline void in_container(const std::function<void()>& body) {
  expect(unshare(CLONE_NEWPID | CLONE_NEWNS) == 0, "unshare");
  expect(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "mount /");
  expect(mount("none", "/tmp", "tmpfs", 0, nullptr) == 0, "mount /tmp");
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the harness knows of its parent only
    try {
      body();
      _exit(0);
    } catch (const std::exception& error) {
      (void)!write(STDERR_FILENO, error.what(), std::strlen(error.what()));
      _exit(1);
    }
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  expect(status == 0, "the container's process ended with " + std::to_string(status));
}

}  // namespace rondo::testing
