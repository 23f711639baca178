// See child.hpp.
#include "comm/launch/child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "comm/bootstrap/connection/connection.hpp"
#include "comm/launch/console.hpp"
#include "comm/launch/signals.hpp"

namespace rondo::run {
namespace {

using transport::UniqueFd;

struct Pipe {
  UniqueFd read, write;
  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = UniqueFd(ends[0]);
    write = UniqueFd(ends[1]);
    return true;
  }
};

/// In the child, where an exception must not reach the caller of start_child().
[[noreturn]] void become(const ChildOptions& options, pid_t launcher, int in, int out, int err,
                         int failure) noexcept {
  prctl(PR_SET_PDEATHSIG, options.signal_at_end);
  if (getppid() != launcher) _exit(kLauncherExit);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  options.prepare();
  const sigset_t set = handled_signals();
  // A shell without job control has what runs in the background ignore SIGINT.
  for (const int passed_on : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) {
    if (sigismember(&set, passed_on) == 1) signal(passed_on, SIG_DFL);
  }
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_DFL);
  std::vector<char*> arguments;
  for (const std::string& word : options.words)
    arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  (void)!write(failure, &error, sizeof error);
  _exit(kNotFoundExit);
}

/// Returns the errno that the child has sent, or 0 if the pipe was closed because the program began.
int read_failure(int fd) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(fd, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

Child failed(const std::string& what, int error, int exit_code) {
  return {.status = comm::system_status(what, error), .exit_code = exit_code};
}

}  // namespace

Child start_child(const ChildOptions& options) {
  Pipe in, out, err, failure;
  for (Pipe* pipe : {&in, &out, &err, &failure}) {
    if (!pipe->open()) return failed("pipe", errno, kLauncherExit);
  }
  if (!options.has_input)
    in = {.read = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)), .write = {}};
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) return failed("fork", errno, kLauncherExit);
  if (pid == 0) {
    become(options, launcher, in.read.get(), out.write.get(), err.write.get(), failure.write.get());
  }
  failure.write.reset();
  if (const int error = read_failure(failure.read.get()); error != 0) {
    waitpid(pid, nullptr, 0);
    const bool is_missing = error == ENOENT || error == ENOTDIR;
    return failed("cannot run " + options.words[0], error,
                  is_missing ? kNotFoundExit : kNotExecutableExit);
  }
  return {.pid = pid,
          .in = std::move(in.write),
          .out = std::move(out.read),
          .err = std::move(err.read)};
}

}  // namespace rondo::run
