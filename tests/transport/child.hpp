// Runs a function in a forked child: for ranks, and for limits, environments and crashes that must
// not touch the test program itself.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "transport/memory/unique_fd.hpp"

namespace rondo::transport::test {

/// A child that runs a function, which returns "" for all well.
class Child {
 public:
  template <class Function>
  explicit Child(const Function& function) {
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) return;
    reading_.reset(ends[0]);
    const UniqueFd writing(ends[1]);
    pid_ = ::fork();
    if (pid_ != 0) return;
    const std::string text = function();
    const ssize_t written = ::write(writing.get(), text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  /// What the function returned, or how the child ended instead. Waits for that; call it once.
  std::string text() {
    if (pid_ < 0) return "no child";
    std::string text;
    char buffer[512];
    ssize_t got = 0;
    while ((got = ::read(reading_.get(), buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(got));
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
    if (status != 0) return "ended with status " + std::to_string(status) + ": " + text;
    return text;
  }

 private:
  UniqueFd reading_;
  pid_t pid_ = -1;
};

template <class Function>
std::string in_child(const Function& function) {
  return Child(function).text();
}

}  // namespace rondo::transport::test
