// rondo-run --serve: the ranks of one host, for a rondo-run on another, which has started this one
// through an agent and speaks to it over stdin and stdout (frames.hpp).
#pragma once

namespace rondo::run {

/// Runs one job and returns the exit code. When stdin ends, or nothing comes for too long, all ranks
/// are killed: none outlives the rondo-run that the user has started.
/// REQUIRES: as run_job().
int serve();

}  // namespace rondo::run
