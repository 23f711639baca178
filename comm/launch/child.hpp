// Starts a program as a child process, with pipes as its standard streams: a rank, or the agent that
// reaches a host.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "rondo/status.hpp"
#include "transport/memory/unique_fd.hpp"

namespace rondo::run {

struct ChildOptions {
  std::vector<std::string> words;  // the program and its arguments
  /// What the child gets when this process ends.
  int signal_at_end = 0;
  /// Whether its stdin is a pipe. Otherwise it is empty.
  bool has_input = false;
  /// Called in the child, which has its streams, before the program begins.
  std::function<void()> prepare;
};

struct Child {
  pid_t pid = -1;
  transport::UniqueFd in{}, out{}, err{};  // this process's ends
  /// Why nothing runs, and the exit code for it, as a shell has it: 126 or 127 if `words[0]` cannot be
  /// run.
  Status status{};
  int exit_code = 0;
};

/// Returns when the program has begun, or has failed to.
/// REQUIRES: prepare_process() (signals.hpp) was called, and no other threads exist.
Child start_child(const ChildOptions& options);

}  // namespace rondo::run
