// NCCL behind the harness' interface: a rank on every GPU of this machine, all in one process.
#pragma once

#include <memory>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// How many GPUs there are; kUnavailable, saying why, where there is none.
Result<int> gpus_for_nccl();

/// What the ranks of one world share.
class NcclWorld {
 public:
  virtual ~NcclWorld() = default;
  /// Rank `rank` on GPU `rank`, for the calling thread alone; each rank needs one of its own.
  /// Blocks until all have come.
  virtual Result<std::unique_ptr<Backend>> make_backend(int rank) = 0;
};
Result<std::unique_ptr<NcclWorld>> make_nccl_world(int ranks);

}  // namespace rondo::bench
