// One attempt at running a program as N ranks of this host: starts them, passes on their output,
// and ends with none of their processes left, however the attempt goes.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace rondo::run {

struct JobOptions {
  int ranks = 1;
  std::vector<std::string> command;
  int restart_count = 0;
  /// Whether every line that a rank prints begins with "[rank] ".
  bool prefix_lines = true;
  /// Whether each rank is bound to a share of the CPUs, where there is one for each.
  bool bind = false;
  /// When the whole job, all attempts together, must be over.
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

struct JobResult {
  int exit_code = 0;
  /// Whether another attempt may help: a rank failed by itself.
  bool rank_failed = false;
};

/// REQUIRES: prepare_process() was called, and no other threads or children exist.
JobResult run_job(const JobOptions& options);

/// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGCHLD reach run_job() through a descriptor; orphans of
/// ranks become this process's children.
void prepare_process();

}  // namespace rondo::run
