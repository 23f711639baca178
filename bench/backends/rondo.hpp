// rondo behind the harness' interface.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "bench/backends/cuda_memory.hpp"
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
  bool cuda = false;  // buffers are on the device that is `local_rank`'s turn
  int local_rank = 0;
  size_t graph = 0;  // operations of a graph whose replays are timed; 0: launches are
  /// For what memory() says: ranks of this process, and its own memory before any of them came.
  int ranks_in_process = 1;
  size_t private_bytes_before = 0;
};

/// What only rondo can do.
class RondoBackend : public Backend {
 public:
  /// Every pending and later call of every rank fails with this reason. Any thread.
  virtual void abort(const std::string& reason) = 0;
  /// From now on: the algorithm of what is measured (kAuto: rondo's choice), and whether
  /// predictions are for buffers that all ranks map.
  virtual void select(Algorithm algorithm, bool direct) = 0;
  /// What select()ed means for this shape; nothing where it is not possible here.
  virtual std::optional<Plan> planned(const Shape& shape) const = 0;
};

/// Blocks until all ranks have come.
Result<std::unique_ptr<RondoBackend>> make_rondo_backend(const RondoOptions& options);

}  // namespace rondo::bench
