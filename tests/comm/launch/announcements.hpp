// How a test on several hosts knows which of a job's processes run, and when they have ended.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/harness/catch.hpp"
#include "tests/harness/hosts.hpp"
#include "tests/harness/rank_group.hpp"

namespace rondo {

using testing::Hosts;
using testing::TempDirectory;

/// Ranks write a line into it when they run; `script` for them, and the test's wait.
class Announcements {
 public:
  explicit Announcements(const TempDirectory& place) : path_(place.path() + "/announcements") {
    REQUIRE(mkfifo(path_.c_str(), 0600) == 0);
    fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);  // also for writing: so that it never ends
  }
  ~Announcements() { close(fd_); }
  Announcements(const Announcements&) = delete;
  Announcements& operator=(const Announcements&) = delete;

  static std::string script() { return "echo >$PLACE/announcements; "; }
  void await(int ranks) {
    for (int i = 0; i < ranks; ++i) {
      pollfd come{fd_, POLLIN, 0};
      REQUIRE(poll(&come, 1, 30'000) == 1);
      char line;
      REQUIRE(read(fd_, &line, 1) == 1);
    }
  }

 private:
  std::string path_;
  int fd_;
};

/// Every process on the hosts now; await_end() waits until all of them have ended.
class ProcessesOnHosts {
 public:
  explicit ProcessesOnHosts(const Hosts& hosts, int count) {
    for (int host = 0; host < count; ++host) {
      for (const pid_t pid : hosts.processes(host)) {
        const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
        if (fd >= 0) fds_.push_back(fd);
      }
    }
  }
  ~ProcessesOnHosts() {
    for (const int fd : fds_) close(fd);
  }
  ProcessesOnHosts(const ProcessesOnHosts&) = delete;
  ProcessesOnHosts& operator=(const ProcessesOnHosts&) = delete;

  size_t size() const { return fds_.size(); }
  void await_end() const {
    for (const int fd : fds_) {
      pollfd ended{fd, POLLIN, 0};
      REQUIRE(poll(&ended, 1, 20'000) == 1);
    }
  }

 private:
  std::vector<int> fds_;
};

}  // namespace rondo
