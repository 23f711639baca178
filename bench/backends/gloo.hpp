// Gloo over TCP on the loopback interface, behind the harness' interface.
#pragma once

#include <memory>
#include <string>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// Ranks meet through files in `directory`, which must be empty of earlier meetings. Blocks until
/// all have come.
Result<std::unique_ptr<Backend>> make_gloo_backend(int rank, int size,
                                                   const std::string& directory);

}  // namespace rondo::bench
