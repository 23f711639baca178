// Which places for thread blocks this process' communicators may take on each GPU. Kernels of one
// communicator wait for each other, so all of them have to fit at the same time, beside those of
// all others: kernels of two communicators that each wait for a place which the other has hang as
// well.
#pragma once

#include "rondo/status.hpp"
#include "transport/cuda_ipc/placement.hpp"

namespace rondo::device {

using transport::cuda_ipc::DeviceId;

/// Blocks that belong to one rank of one communicator until the claim ends. Thread-safe.
class Claim {
 public:
  Claim() = default;  // none
  /// kUnavailable where this process would then have more than `most` on the device.
  static Result<Claim> take(const DeviceId& device, int blocks, int most);
  ~Claim();
  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&& other) noexcept;

 private:
  DeviceId device_{};
  int blocks_ = 0;
};

/// What is claimed on the device, by this process.
int claimed(const DeviceId& device);

}  // namespace rondo::device
