// Whether all ranks have the same model: asked once, before anything else moves.
#pragma once

#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"

namespace rondo::ddp {

/// REQUIRES: check() was ok. A line for each tensor and buffer after one for the options.
std::vector<std::string> describe(const std::vector<DdpTensor>& tensors,
                                  const std::vector<DdpTensor>& buffers, const DdpOptions& options);

/// kMismatch, the same sentence on every rank, with the first line that differs from rank 0's. Two
/// words per rank travel, and the texts only where they differ.
Status require_same(Communicator& communicator, const std::vector<std::string>& mine);

}  // namespace rondo::ddp
