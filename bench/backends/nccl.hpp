// NCCL as a Backend: a rank on every GPU of this machine, all in one process.
#pragma once

#include <memory>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// The number of GPUs; kUnavailable with the reason if there is none.
Result<int> gpus_for_nccl();

/// The data that the ranks of one world share.
class NcclWorld {
 public:
  virtual ~NcclWorld() = default;
  /// Rank `rank` on GPU `rank`, for the calling thread only. Blocks until all ranks have come.
  virtual Result<std::unique_ptr<Backend>> make_backend(int rank) = 0;
};
Result<std::unique_ptr<NcclWorld>> make_nccl_world(int ranks);

}  // namespace rondo::bench
