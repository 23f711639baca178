// One attempt at running a program as ranks of this host: starts them, passes on their output, and
// ends with none of their processes left, however the attempt goes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/launch/console.hpp"
#include "comm/launch/job_clock.hpp"

namespace rondo::run {

/// What the ranks of this host are in a job that a rondo-run on another host supervises.
struct JobPart {
  int first_rank = 0;
  int world_size = 1;
  int host = 0, hosts = 1;
  /// Of several hosts: where rank 0's is reached, a free port of it for the program, and one for
  /// rondo.
  std::string master_address{};
  int master_port = 0, rendezvous_port = 0;
  std::string secret{};
};

struct JobOptions {
  int ranks = 1;
  std::vector<std::string> command;
  int restart_count = 0;
  /// Whether each rank is bound to a share of the CPUs, where there is one for each.
  bool bind = false;
  /// Ranks that a signal kills, and hosts that are lost, do not end the job.
  bool elastic = false;
  /// Whether what the ranks write there ends up on a terminal.
  bool stdout_is_terminal = false, stderr_is_terminal = false;
  /// When the whole job, all attempts together, must be over.
  std::optional<JobClock::time_point> deadline;
  /// Nothing: this process supervises the whole job.
  std::optional<JobPart> part;
};

struct JobResult {
  int exit_code = 0;
  /// Whether another attempt may help: a rank failed by itself.
  bool rank_failed = false;
  /// Ranks that ended with 0.
  int succeeded = 0;
};

/// REQUIRES: prepare_process() (signals.hpp) was called, and no other threads or children exist.
JobResult run_job(const JobOptions& options, Console& console);

/// A fresh secret for one attempt.
std::string make_secret();
/// The words that mean a place on the network: [HOST]:PORT for IPv6.
std::string with_port(const std::string& address, int port);

}  // namespace rondo::run
