// Which hosts a job runs on, and with how many ranks each: from --hosts and --hostfile. Opens no
// connection.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::run {

struct JobHost {
  std::string name;
  int ranks = 0;    // the sum of the numbers after the host's name
  int without = 0;  // how often the host's name has no number
};

/// "a:2,b:2", or "a,b" for hosts whose number of ranks place_ranks() finds. IPv6 addresses are in
/// brackets if a number follows, as in [fd77::1]:2. A host that is named twice gets the ranks of
/// both. kInvalidArgument names the part.
Result<std::vector<JobHost>> parse_hosts(const std::string& list);

/// A file's lines: "HOST", "HOST:2", "HOST 2" or "HOST slots=2", and Open MPI's max_slots=...,
/// which is ignored. Empty lines and what follows # are comments. `name` is for errors.
Result<std::vector<JobHost>> parse_hostfile(std::string_view text, const std::string& name);

/// How many ranks a job has: in all (`rondo-run -n`), for each host without a number
/// (`--nproc-per-node`), or as the list says.
struct JobRanks {
  std::optional<int> total{}, per_host{};
};

/// The hosts with their final numbers of ranks. By default a host without a number gets one. With a
/// total, hosts with numbers are filled in the order of the list, as mpirun fills slots, and the
/// others share the rest evenly, the first of them one more; hosts without ranks are left out.
/// kInvalidArgument: the total is larger than all numbers together.
Result<std::vector<JobHost>> place_ranks(std::vector<JobHost> hosts, const JobRanks& ranks);

}  // namespace rondo::run
