// The launchers whose variables rondo reads: one table, and what a row of it says about this
// process. Sets of variables are never mixed, but they are compared: two launchers that contradict
// each other are an error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// The variable's text; an empty one counts as absent. How all of comm/ reads RONDO_ variables.
std::optional<std::string> variable(const char* name);

/// A whole number, not negative; the error names the variable and its text.
Result<int> parse_number(const std::string& name, const std::string& text);

/// 0 <= rank < world size; the names are for the error.
Status check_range(const Place& place, const std::string& rank_name, const std::string& size_name);

/// What the environment says about this process.
struct Launched {
  Place place{};
  /// "LOCAL_WORLD_SIZE is 2 but WORLD_SIZE is 4" where ranks are on other hosts; else empty.
  std::string elsewhere;
};
/// By the first launcher of the table whose variables are set; nothing: by none.
Result<std::optional<Launched>> read_launcher();

/// What tells this job from others of the same host, as a file name: never the same for two jobs
/// at once. Empty: no launcher, or one that says nothing about it.
Result<std::string> job_name();

/// "HOST:PORT" where rank 0 could listen for ranks of other hosts and containers; empty where the
/// launcher does not say where rank 0 is. The port is MASTER_PORT + 1, as torchrun's agent listens
/// on MASTER_PORT itself, or follows from Slurm's job and step.
Result<std::string> rank_0_address();

/// The variables by which a rank knows its launcher: whoever starts ranks of its own takes those of
/// an outer launcher away. Not Slurm's, which count only where there are no others.
std::vector<const char*> rank_variables();

}  // namespace rondo::comm
