// rondo behind the harness' interface.
#pragma once

#include <memory>

#include "bench/harness/backend.hpp"
#include "rondo/rondo.hpp"

namespace rondo::bench {

/// `direct`: every rank's buffers are mapped by all, as library memory and threads' memory is; only
/// predictions need it.
struct RondoOptions {
  Config config;
  Algorithm algorithm = Algorithm::kAuto;  // of what is measured
  bool library_memory = false;
  bool direct = false;
};

/// Blocks until all ranks have come.
Result<std::unique_ptr<Backend>> make_rondo_backend(const RondoOptions& options);

}  // namespace rondo::bench
