// The few calls of CUDA's driver that the library makes itself, found when they are first needed: so
// one library serves machines with and without a GPU.
#pragma once

#include <cstddef>
#include <memory>

#include "rondo/rondo.hpp"

namespace rondo::nccl::driver {

/// The device of this thread's context; 0 without one. kSystem: this machine has no driver.
Result<int> current_device();
Result<int> device_count();
Result<void*> allocate(size_t bytes);
Status free(void* pointer);
/// Reads device memory, by pinned memory and an event of its own. Made once for a communicator, and freed
/// with it, since CUDA may wait for streams when it pins memory and when it frees that. One thread at a
/// time.
class ScalarReader {
 public:
  /// For streams of that device, whatever the calling thread's is.
  static Result<std::unique_ptr<ScalarReader>> make(int device);
  ~ScalarReader();
  ScalarReader(const ScalarReader&) = delete;
  ScalarReader& operator=(const ScalarReader&) = delete;

  /// Copies at most 64 bytes to the host when the stream has come so far, and waits for that.
  /// kInvalidArgument: the stream is being captured.
  Status read(void* into, const void* from, size_t bytes, void* stream);

 private:
  ScalarReader() = default;

  void* context_ = nullptr;
  void* pinned_ = nullptr;
  void* event_ = nullptr;
};

}  // namespace rondo::nccl::driver
