// Which hosts a job runs on, and with how many ranks each: from --hosts and --hostfile. Opens no
// connection.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rondo/status.hpp"

namespace rondo::run {

struct JobHost {
  std::string name;
  int ranks = 0;
};

/// "a:2,b:2"; a host without a number gets `ranks_by_default`. IPv6 addresses are in brackets where
/// a number follows, as in [fd77::1]:2. A host that is named twice gets the ranks of both.
/// kInvalidArgument names the part.
Result<std::vector<JobHost>> parse_hosts(const std::string& list, int ranks_by_default);

/// A file's lines: "HOST", "HOST:2", "HOST 2" or "HOST slots=2", and Open MPI's max_slots=...,
/// which is ignored. Empty lines and what follows # are comments. `name` is for errors.
Result<std::vector<JobHost>> parse_hostfile(std::string_view text, const std::string& name,
                                            int ranks_by_default);

}  // namespace rondo::run
