// What cannot be a model or its options: refused before anything moves, by each rank for itself.
#pragma once

#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"

namespace rondo::ddp {

/// kInvalidArgument names the tensor or option, its value and what to do.
Status check(const std::vector<DdpTensor>& tensors, const std::vector<DdpTensor>& buffers,
             const DdpOptions& options);

/// Whether the options fit where the communicator's buffers are. kInvalidArgument as above;
/// kUnavailable for what there is not on a device.
Status check_device(const Communicator& communicator, const std::vector<DdpTensor>& tensors,
                    const DdpOptions& options);

}  // namespace rondo::ddp
