// Meeting by a secret id instead of a launcher's variables: where the ranks meet, with which
// secret, and how the caller's all-gather distributes the id.
#pragma once

#include <string>

#include "comm/bootstrap/environment.hpp"
#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// Derives directory and secret from Config::unique_id alone (the secret also from RONDO_SECRET,
/// which `identity` has already), so that ranks with different environments meet. kInvalidArgument,
/// without printing the id: make_unique_id() did not make it.
Status meet_by_unique_id(const Config& config, Identity& identity);

/// Calls Config::all_gather and sets Config::unique_id to the id that rank 0 makes. `own` is this
/// rank's error so far, if any: it is sent too, so that the others fail and do not wait.
Status agree_on_unique_id(Config& config, Status own);

}  // namespace rondo::comm
