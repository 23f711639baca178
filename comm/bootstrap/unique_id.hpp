// Ranks that were given one secret name by means of their caller's own, instead of a launcher's
// variables: where they meet, what they prove, and how a caller's all-gather hands the name round.
#pragma once

#include <string>

#include "comm/bootstrap/environment.hpp"
#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// The directory and the secret of the ranks that were given Config::unique_id: both follow from it
/// alone (the secret also from RONDO_SECRET, which is already there), so that ranks with different
/// environments meet. kInvalidArgument, which does not print the id: not one of make_unique_id()'s.
Status meet_by_unique_id(const Config& config, Identity& identity);

/// Calls Config::all_gather and fills in Config::unique_id with what rank 0 has made. `own` is this
/// rank's failure so far, if any: it goes round too, so that the others learn of it and do not
/// wait.
Status agree_on_unique_id(Config& config, Status own);

}  // namespace rondo::comm
