// What a device communicator runs on: CUDA's calls and the kernel. A test replaces both here, so
// that everything above is tested on machines without a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::device {

using transport::cuda_ipc::CudaCalls;
using transport::cuda_ipc::Event;
using transport::cuda_ipc::Stream;

struct GpuBackend {
  std::shared_ptr<CudaCalls> cuda;
  const void* kernel = nullptr;     // of (DeviceLinks, DeviceGroup), a block for each channel
  int threads = 0;                  // of a block
  const void* ll_kernel = nullptr;  // the same, for operations by LL alone
  int ll_threads = 0;
  size_t program_bytes = size_t{4} << 20;  // room for the programs of a communicator
  std::optional<bool> gpu_direct{};  // a test's decision: slots for other hosts lie on the GPU
  uint64_t process = 0;  // 0: this one; a test's threads may count as processes of their own
};

/// This machine's backend, or a test's. kUnavailable, with the reason: there is none.
Result<GpuBackend> open_backend();

/// For tests: open_backend() returns what `open` does; empty: this machine's again. Not while a
/// communicator is created.
void replace_backend(std::function<Result<GpuBackend>()> open);

/// Copies some kilobytes on a stream of rondo's own, also while the caller captures one of its
/// streams, and waits for that. `what`: it, for the error.
Status copy_and_wait(CudaCalls& cuda, std::byte* to, const std::byte* from, size_t bytes,
                     Stream stream, const char* what);
/// Waits for the copies on such a stream, 10 s at most: kTimeout. While this thread is outside of
/// captures (OutsideCapture).
Status await_copies(CudaCalls& cuda, Stream stream, const char* what);

/// Sets the calling thread's current device, and restores it at the end. CUDA's calls concern the
/// current device, which belongs to the caller. Nothing is left on a device that the caller does not
/// use.
class DeviceScope {
 public:
  DeviceScope(CudaCalls& cuda, int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  const Status& status() const { return status_; }

 private:
  CudaCalls& cuda_;
  bool has_entered_ = false;
  Status status_;
};

/// While it lives, this thread may make calls that a stream capture of the application would
/// forbid, on rondo's own streams and events and memory. Else CUDA refuses such a call, and ends the
/// capture, which may be another thread's.
class OutsideCapture {
 public:
  explicit OutsideCapture(CudaCalls& cuda);
  ~OutsideCapture();
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;
  const Status& status() const { return status_; }

 private:
  CudaCalls& cuda_;
  int before_ = -1;
  Status status_;
};

}  // namespace rondo::device
