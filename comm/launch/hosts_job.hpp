// One attempt at running a program as ranks of several hosts: a rondo-run --serve on each, started
// through an agent. Ends with all of them ended.
#pragma once

#include <string>
#include <vector>

#include "comm/launch/console.hpp"
#include "comm/launch/host_link.hpp"
#include "comm/launch/host_list.hpp"
#include "comm/launch/local_job.hpp"

namespace rondo::run {

struct HostsOptions {
  /// Ranks are numbered in this order; rank 0 is on the first.
  std::vector<JobHost> hosts;
  AgentOptions agent;
  /// Where the ranks run; the same on all hosts.
  std::string directory;
  /// How other hosts reach the first one; empty: by its name in the list.
  std::string rendezvous_host;
  /// Whether the hosts are all this one, under several names: rank 0 listens on loopback.
  bool only_this_host = false;
};

/// `job` without ranks and part, which are each host's own.
/// REQUIRES: as run_job().
JobResult run_on_hosts(const HostsOptions& options, const JobOptions& job,
                       TerminalConsole& console);

}  // namespace rondo::run
