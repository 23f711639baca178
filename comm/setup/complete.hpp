// Setup, first step: the Config as the caller gave it, completed from the environment and checked.
#pragma once

#include <chrono>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// Fills in what RONDO_ variables set, and checks all that one rank can check alone. `agreed`: of a
/// communicator made from another one, whose ranks have agreed on pace, algorithm and `reproducible`;
/// variables do not change these. kInvalidArgument, kUnavailable.
Status complete(Config& config, bool agreed);

/// RONDO_HOST_TIMEOUT, ten seconds by default: after this time without a message from a host its ranks
/// count as lost. kInvalidArgument.
Result<std::chrono::milliseconds> longest_silence();

}  // namespace rondo::comm
