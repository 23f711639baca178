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
/// What reads device memory: pinned memory of kMostRead bytes, and an event. Made where nothing is
/// enqueued, since CUDA may wait for streams when it pins memory.
struct ScalarReader {
  static constexpr size_t kMostRead = 64;
  void* pinned = nullptr;
  void* event = nullptr;
};
Result<ScalarReader> make_reader();
void free_reader(const ScalarReader& reader);
/// Copies at most kMostRead bytes of device memory to the host when the stream has come so far, and
/// waits for that. kInvalidArgument: the stream is being captured.
Status read(const ScalarReader& reader, void* into, const void* from, size_t bytes, void* stream);

}  // namespace rondo::nccl::driver
