// What the launcher's PMIx server knows and PMIx leaves out of the environment: the number of ranks, and
// a text that rank 0 passes to all others. By libpmix, which is loaded when it is needed.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "rondo/communicator.hpp"
#include "rondo/status.hpp"

namespace rondo::comm {

/// This process in its job. The first call connects to the server, for as long as the process lives:
/// launchers take the end of a connected process that has not said goodbye for a failure.
/// kUnavailable, with the reason: there is no libpmix, or the server refuses. Thread-safe.
Result<Place> pmix_place();

/// On rank 0: publishes what `make` returns for the job's other ranks. The first call does; later ones
/// change nothing. REQUIRES: pmix_place() has succeeded.
Status pmix_publish(const std::function<std::string()>& make);

/// What rank 0 has published; waits for it.
Result<std::string> pmix_published(std::chrono::milliseconds timeout);

}  // namespace rondo::comm
