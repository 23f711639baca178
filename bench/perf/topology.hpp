// rondo-perf --topology under a launcher: each host's report once, printed by rank 0.
#pragma once

#include "rondo/communicator.hpp"

namespace rondo::bench {

/// Every rank of the launcher calls it. Makes a communicator with `config`; the first rank of each
/// host looks at it.
Status print_topology_of_hosts(const Config& config);

}  // namespace rondo::bench
