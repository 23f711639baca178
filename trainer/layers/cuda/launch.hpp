// Starts the trainer's kernels (block.hpp) on a GPU. Those that layers.cu and optim's
// flat.cu list are linked.
#pragma once

#include "rondo/status.hpp"

namespace rondo::trainer::cuda {

/// Enqueues a kernel on a cudaStream_t of the calling thread's device; does not wait. What its
/// pointers name must be accessible to that device until it has ended. `what` names it in an error.
template <class Kernel>
Status launch(const char* what, const Kernel& kernel, void* stream);

}  // namespace rondo::trainer::cuda
