// Gloo over TCP, as a Backend.
#pragma once

#include <memory>
#include <string>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// Ranks meet through files in `directory`, which must not hold files of an earlier meeting. Blocks
/// until all ranks have come. `interface` carries the messages, as in "eth0"; empty: loopback.
Result<std::unique_ptr<Backend>> make_gloo_backend(int rank, int size, const std::string& directory,
                                                   const std::string& interface = {});

}  // namespace rondo::bench
