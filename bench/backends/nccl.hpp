// NCCL as a Backend: ranks on the GPUs of this machine, all in one process.
#pragma once

#include <memory>

#include "bench/harness/backend.hpp"

namespace rondo::bench {

/// The number of GPUs; kUnavailable with the reason if there is none.
Result<int> gpus_for_nccl();

/// kInvalidArgument, with NCCL's version, if it does not take `ranks` ranks on so many GPUs.
Status check_nccl_ranks(int ranks, int gpus);

/// The data that the ranks of one world share.
class NcclWorld {
 public:
  virtual ~NcclWorld() = default;
  /// Rank `rank`, the GPUs being assigned to ranks in turn, for the calling thread only. Blocks until
  /// all ranks have come.
  virtual Result<std::unique_ptr<Backend>> make_backend(int rank) = 0;
};
Result<std::unique_ptr<NcclWorld>> make_nccl_world(int ranks);

}  // namespace rondo::bench
