// Setup, first step: the Config as the caller gave it, completed from the environment and checked.
#pragma once

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// Fills in what RONDO_ variables set, and checks all that one rank can check alone.
/// kInvalidArgument, kUnavailable.
Status settle(Config& config);

}  // namespace rondo::comm
