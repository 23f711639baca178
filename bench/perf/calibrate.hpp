// rondo-perf --calibrate: from measurements on this machine to a link profile in a file.
#pragma once

#include "bench/backends/rondo.hpp"
#include "bench/harness/options.hpp"
#include "rondo/communicator.hpp"

namespace rondo::bench {

/// Measures every collective, or options.collective, with every algorithm on both kinds of memory at the sizes of
/// options.sweep; writes options.calibrate_file (rank 0); loads it into a second communicator with
/// `config`; and prints the error of its predictions against times of the same rounds at sizes that
/// the fit has not seen. Where ranks are on several hosts it is the wire that is measured, on plain
/// memory; what the file says of a host, or of other ranks, stays as it is. Returns the exit code.
int calibrate(const PerfOptions& options, const Config& config, RondoBackend& backend);

}  // namespace rondo::bench
