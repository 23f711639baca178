// What cannot be a model or its options: refused before anything moves, by each rank for itself.
#pragma once

#include <vector>

#include "rondo/ddp.hpp"

namespace rondo::ddp {

/// kInvalidArgument names the tensor or option, its value and what to do.
Status check(const std::vector<DdpTensor>& tensors, const std::vector<DdpTensor>& buffers,
             const DdpOptions& options);

}  // namespace rondo::ddp
