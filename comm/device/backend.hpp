// What a device communicator runs on: CUDA's calls and the kernel. Here is the one place where a
// test puts in something else, so that everything above it is tested on machines without a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::device {

using transport::cuda_ipc::CudaCalls;
using transport::cuda_ipc::Event;
using transport::cuda_ipc::Stream;

struct Backend {
  std::shared_ptr<CudaCalls> cuda;
  const void* kernel = nullptr;  // of (DeviceLinks, DeviceGroup), a block for each channel
  int threads = 0;               // of a block
  size_t program_bytes = size_t{4} << 20;  // room for the programs of a communicator
};

/// This machine's, or a test's. kUnavailable, with a sentence: there is none.
Result<Backend> open_backend();

/// For tests: what open_backend() gives from now on; empty: this machine's again. Not while a
/// communicator is made.
void replace_backend(std::function<Result<Backend>()> open);

/// Makes a device the calling thread's current one, for as long as it lives. Calls of the runtime
/// are about that one, and it belongs to the caller.
class DeviceScope {
 public:
  DeviceScope(CudaCalls& cuda, int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  const Status& status() const { return status_; }

 private:
  CudaCalls& cuda_;
  const int device_;
  int before_ = -1;
  Status status_;
};

/// While it lives, this thread may call what a capture of somebody's stream would otherwise forbid:
/// what is about streams and events of rondo's own.
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
