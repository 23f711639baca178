// Has a GPU load the trainer's kernels before a run.
#pragma once

#include "trainer/base/device.hpp"

namespace rondo::trainer {

/// Those that models and optimizers of any type may launch, not those of cuBLASLt: the first launch
/// would do it, and may then wait for other kernels on the GPU, which may wait for this rank. An error
/// is the device's.
void load_kernels(Device& device);

}  // namespace rondo::trainer
