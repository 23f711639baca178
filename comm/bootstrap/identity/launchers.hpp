// The launchers whose variables rondo reads, as one table. Variables of two launchers are never
// mixed, but compared: a contradiction is an error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/base/variables.hpp"
#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// 0 <= rank < world size; the names are for the error.
Status check_range(const Place& place, const std::string& rank_name, const std::string& size_name);

/// This process's place by a launcher's variables.
struct Launched {
  Place place{};
  /// "LOCAL_WORLD_SIZE is 2 but WORLD_SIZE is 4" where ranks are on other hosts; else empty.
  std::string elsewhere;
  /// The launcher's PMIx server said so, and ranks can pass on a text by it.
  bool by_pmix = false;
};
/// Of the first launcher of the table whose variables are set; nothing: there is none.
Result<std::optional<Launched>> read_launcher();

/// A file name for this job, different from that of every other job on this host at the same time.
/// Empty: no launcher, or one without such a name.
Result<std::string> job_name();

/// A name of the job that is the same on all of its hosts. Empty: no launcher, or one without such a
/// name.
std::string job_id();

/// "HOST:PORT" where rank 0 can listen for ranks of other hosts and containers; empty where rank 0's
/// host is not known. The host: MASTER_ADDR, else the first of Slurm's step, else where Open MPI's
/// mpirun runs, all of its addresses, separated by commas (an error on a rank 0 that runs
/// elsewhere). The port: MASTER_PORT + 1, as torchrun's agent listens on MASTER_PORT itself, else
/// one that follows from the job's name, else 29501.
Result<std::string> rank_0_address();

/// The variables by which a rank recognizes its launcher. A launcher removes those of an outer one
/// from its ranks' environment. Without Slurm's, which count only if no others are set.
std::vector<const char*> rank_variables();

}  // namespace rondo::comm
