// rondo-perf --sweep: every algorithm of a collective at every size, and what the choice loses.
#pragma once

#include <string>

#include "bench/backends/rondo.hpp"
#include "bench/harness/options.hpp"

namespace rondo::bench {

/// Prints the table (rank 0) and writes options.json_file. Returns the exit code: 0 whatever the
/// loss.
int sweep_algorithms(const PerfOptions& options, RondoBackend& backend, const std::string& pinning);

}  // namespace rondo::bench
