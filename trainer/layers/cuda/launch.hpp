// Starts the trainer's kernels (block.hpp) on a device.
#pragma once

#include "trainer/base/device.hpp"
#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

/// What CudaCalls::launch() takes for this kernel. Defined for those of kernel_list.hpp: by
/// launch.cuh as machine code; in tests as something that a stand-in for a GPU walks.
template <class Kernel>
const void* kernel_entry();

/// Enqueues a kernel on a stream, or on the device's; does not wait. What its pointers name must be
/// accessible to the device until it has ended. `what` names it in an error, which is the
/// device's.
template <class Kernel>
void launch(Device& device, const char* what, const Kernel& kernel, Device::Stream stream) {
  const Grid grid = kernel.grid();
  device.launch(what, kernel_entry<Kernel>(),
                {.x = grid.x,
                 .y = grid.y,
                 .z = grid.z,
                 .threads = Kernel::kThreads,
                 .shared_bytes = kernel.shared_bytes()},
                &kernel, stream);
}
template <class Kernel>
void launch(Device& device, const char* what, const Kernel& kernel) {
  launch(device, what, kernel, device.stream());
}

}  // namespace rondo::trainer::cuda
