// A process that is forked while another thread of its parent holds one of rondo's locks can use
// rondo nevertheless.
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/bootstrap/session/process_handle.hpp"
#include "comm/host/progress.hpp"
#include "rondo/log.hpp"
#include "tests/harness/catch.hpp"

namespace rondo {
namespace {

/// Forks again and again while another thread does `work` all the time; every child does it, too.
/// How many of the children did not come to an end within seconds.
int count_stuck(const std::function<void()>& work) {
  work();
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) work();
  });
  int stuck = 0;
  for (int child = 0; child < 300 && stuck == 0; ++child) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(20);  // kills a child that hangs
      work();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    stuck += status == 0 ? 0 : 1;
  }
  stop.store(true);
  busy.join();
  return stuck;
}

TEST_CASE("a child forked while another thread logs can log") {
  set_log_callback([](LogLevel, std::string_view) { ::sched_yield(); });
  CHECK(count_stuck([] { log(LogLevel::kError, "in the test"); }) == 0);
  set_log_callback(nullptr);
}

// These allocate, and the second starts a thread in the child, which sanitizers do not always stand
// after such a fork.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a child forked while another thread shares a process handle can share one") {
  const comm::ProcessId self{.pid_namespace = 1, .pid = ::getpid()};
  CHECK(count_stuck([&] {
          const auto fd = static_cast<int>(::syscall(SYS_pidfd_open, self.pid, 0));
          (void)comm::ProcessHandle::share(self, transport::UniqueFd(fd));
        }) == 0);
}

TEST_CASE("a child forked while another thread finds the progress thread can start its own") {
  CHECK(count_stuck([] { (void)engine::ProgressThread::shared(); }) == 0);
}
#endif

}  // namespace
}  // namespace rondo
