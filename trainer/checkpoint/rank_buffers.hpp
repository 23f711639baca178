// Buffers that no broadcast makes equal (--no-broadcast-buffers), to and from a checkpoint: every
// rank's, in rank order, as the 64-bit words that hold its numbers, because JSON knows no NaN.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"

namespace rondo::trainer {

/// Collective.
template <class T>
Result<std::vector<uint64_t>> gather_buffers(DistributedDataParallel& ddp);

/// This rank's of `all`, which rank 0 has. Collective. None, and rank 0 says so, where they are not
/// those of as many ranks.
template <class T>
Result<std::vector<uint64_t>> own_buffers(DistributedDataParallel& ddp, std::vector<uint64_t> all);

/// What own_buffers() gave; nothing if that is nothing.
template <class T>
void set_buffers(const std::vector<uint64_t>& words, DistributedDataParallel& ddp);

}  // namespace rondo::trainer
