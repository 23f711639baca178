// How a test on several hosts knows which of a job's processes run, and when they have ended.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "tests/comm/bootstrap/rondo_run_helpers.hpp"
#include "tests/harness/hosts.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo {

using testing::Hosts;

inline void await_readable(const transport::UniqueFd& fd) {
  pollfd come{fd.get(), POLLIN, 0};
  REQUIRE(poll(&come, 1, 30'000) == 1);
}

/// Ranks write a line into it when they run; `script` for them, and the test's wait.
class Announcements {
 public:
  explicit Announcements(const JobDirectory& place) {
    const std::string path = place.file("announcements");
    std::filesystem::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    fd_.reset(open(path.c_str(), O_RDWR | O_CLOEXEC));  // also for writing: so that it never ends
  }

  static std::string script() { return "echo >$PLACE/announcements; "; }
  void await(int ranks) const {
    for (int i = 0; i < ranks; ++i) {
      await_readable(fd_);
      char line;
      REQUIRE(read(fd_.get(), &line, 1) == 1);
    }
  }

 private:
  transport::UniqueFd fd_;
};

/// Every process on the hosts now; await_end() waits until all of them have ended.
class ProcessesOnHosts {
 public:
  explicit ProcessesOnHosts(const Hosts& hosts) {
    for (int host = 0; host < hosts.count(); ++host) {
      for (const pid_t pid : hosts.processes(host)) {
        transport::UniqueFd fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
        if (fd.valid()) fds_.push_back(std::move(fd));
      }
    }
  }
  size_t size() const { return fds_.size(); }
  void await_end() const {
    for (const transport::UniqueFd& fd : fds_) await_readable(fd);
  }

 private:
  std::vector<transport::UniqueFd> fds_;
};

}  // namespace rondo
