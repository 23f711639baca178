// The shared-memory transport: everything in one piece of memory that all ranks map. The caller
// makes that memory and brings the ranks together (comm/setup).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rondo/status.hpp"
#include "transport/link.hpp"
#include "transport/memory/arena.hpp"
#include "transport/shm/process_copy.hpp"

namespace rondo::transport::shm {

/// Equal on every rank. A FIFO that is never used touches no memory.
struct FifoSizes {
  int ranks = 0;
  int channels = 1;
  uint32_t depth = 8;             // slots of a link
  size_t slot_bytes = 0;          // capacity of a slot; below 4 GiB
  uint32_t publish_depth = 0;     // slots of a publisher; 0: no publishers
  size_t publish_slot_bytes = 0;  // capacity of a publisher's slot
  /// What a FIFO's slots, each as long as its message, go round in at least (layout.hpp). 0: slots
  /// are all as long as the capacity, and no more than needed: small messages use few lines.
  size_t ring_bytes = 0;
};

/// Bytes of shared memory that create() will use. REQUIRES: a FifoSizes that create() accepts.
size_t bytes_needed(const FifoSizes& shape);

/// This rank's end. `base`: bytes_needed(shape) bytes, zero before the first rank calls, aligned to
/// 128; they outlive the transport. `arenas`: one per rank, base null where a rank shares none;
/// empty: no rank shares any. `same_process`: all ranks are threads of this process, and any
/// pointer can be referred to. `processes`: every rank's, where each can copy from and to all
/// others' memory (process_copy.hpp); empty: some rank cannot. Errors: kInvalidArgument.
Result<std::unique_ptr<Transport>> create(const FifoSizes& shape, int rank, std::byte* base,
                                          std::vector<ArenaView> arenas, bool same_process,
                                          std::vector<PeerProcess> processes = {});

}  // namespace rondo::transport::shm
