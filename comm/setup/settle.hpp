// Setup, first step: the Config as the caller gave it, completed from the environment and checked.
#pragma once

#include <chrono>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// Fills in what RONDO_ variables set, and checks all that one rank can check alone. `agreed`: of a
/// communicator made from another one, whose ranks have agreed on pace, algorithm and `reproducible`;
/// variables do not change these. kInvalidArgument, kUnavailable.
Status settle(Config& config, bool agreed);

/// RONDO_HOST_TIMEOUT, else ten seconds: after so long without a word from another host its ranks
/// count as dead. kInvalidArgument.
Result<std::chrono::milliseconds> longest_silence();

}  // namespace rondo::comm
