// The few calls of CUDA's driver that the library makes itself, found when they are first needed: so
// one library serves machines with and without a GPU.
#pragma once

#include <cstddef>

#include "rondo/rondo.hpp"

namespace rondo::nccl::driver {

/// The device of this thread's context; 0 without one. kSystem: this machine has no driver.
Result<int> current_device();
Result<int> device_count();
Result<void*> allocate(size_t bytes);
Status free(void* pointer);
constexpr size_t kMostRead = 64;
/// Copies at most kMostRead bytes of device memory to the host when the stream has come so far, and
/// waits for that. kInvalidArgument: the stream is being captured.
Status read(void* into, const void* from, size_t bytes, void* stream);

}  // namespace rondo::nccl::driver
