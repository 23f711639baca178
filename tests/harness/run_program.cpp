// Programs under test, run to their end or to a limit, with everything that they print.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "tests/harness/rank_group.hpp"

extern char** environ;

namespace rondo::testing {
namespace {

using Clock = std::chrono::steady_clock;

/// The test's environment with the changes applied, as execvpe wants it; `storage` owns the text.
std::vector<char*> environment_with(const std::vector<std::string>& changes,
                                    std::vector<std::string>& storage) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const std::string& c) {
      return c.substr(0, c.find('=')) == name;
    });
    if (!changed) storage.push_back(text);
  }
  for (const std::string& change : changes) {
    if (change.find('=') != std::string::npos) storage.push_back(change);
  }
  std::vector<char*> pointers;
  for (std::string& text : storage) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Reads the available data; at the end closes the pipe and sets it to -1.
void drain(int& fd, std::string& into) {
  char bytes[65536];
  const ssize_t got = read(fd, bytes, sizeof bytes);
  if (got > 0) into.append(bytes, static_cast<size_t>(got));
  if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) {
    close(fd);
    fd = -1;
  }
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& argv,
                          const std::vector<std::string>& environment, std::chrono::seconds limit,
                          const std::function<void(pid_t)>& started) {
  std::vector<std::string> storage, arguments = argv;
  std::vector<char*> env = environment_with(environment, storage), args;
  for (std::string& argument : arguments) args.push_back(argument.data());
  args.push_back(nullptr);

  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe failed");
  }
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execvpe(args[0], args.data(), env.data());
    _exit(127);
  }
  setpgid(pid, pid);
  close(out[1]);
  close(err[1]);
  if (started) started(pid);

  ProgramResult result;
  const auto deadline = Clock::now() + limit;
  while (out[0] >= 0 || err[0] >= 0) {
    pollfd watched[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready =
        left > 0 ? poll(watched, 2, static_cast<int>(std::min<int64_t>(left, 3'600'000))) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      result.timed_out = true;
      kill(-pid, SIGKILL);
      break;
    }
    if (watched[0].revents != 0) drain(out[0], result.out);
    if (watched[1].revents != 0) drain(err[0], result.err);
  }
  for (int fd : {out[0], err[0]}) {
    if (fd >= 0) close(fd);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace rondo::testing
