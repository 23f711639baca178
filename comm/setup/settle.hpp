// Setup, first step: the Config as the caller gave it, completed from the environment and checked.
#pragma once

#include <chrono>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// Fills in what RONDO_ variables set, and checks all that one rank can check alone.
/// kInvalidArgument, kUnavailable.
Status settle(Config& config);

/// RONDO_HOST_TIMEOUT, else ten seconds: after so long without a word from another host its ranks
/// count as dead. kInvalidArgument.
Result<std::chrono::milliseconds> longest_silence();

}  // namespace rondo::comm
