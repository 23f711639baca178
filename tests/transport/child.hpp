// Runs a function in a forked child: for limits, environments and crashes that must not touch the
// test program itself.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace rondo::transport::test {

/// What the child's function returned ("" for all well), or how the child ended instead.
template <class Function>
std::string in_child(Function function) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const std::string text = function();
    const auto written = ::write(ends[1], text.data(), text.size());
    ::_exit(written < 0 ? 1 : 0);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  ssize_t got = 0;
  while ((got = ::read(ends[0], buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  return text;
}

}  // namespace rondo::transport::test
