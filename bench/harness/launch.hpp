// Starting ranks for `--ranks N` without a launcher.
#pragma once

#include <string>

#include "rondo/status.hpp"

namespace rondo::bench {

/// Replaces this process by rondo-run from this program's folder, which runs this program `ranks`
/// times with the same arguments, after `collective` if given. Returns only on failure.
Status start_ranks(int ranks, char** argv, const std::string& collective = {});

}  // namespace rondo::bench
