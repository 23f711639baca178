// How many resident thread blocks each communicator of this process may use on each GPU. Kernels of
// one communicator wait for each other, so all blocks of all communicators must be resident at
// once: two communicators whose kernels wait for each other's block slots would hang.
#pragma once

#include "rondo/status.hpp"
#include "transport/cuda_ipc/placement.hpp"

namespace rondo::device {

using transport::cuda_ipc::DeviceId;

/// Blocks that belong to one rank of one communicator as long as the claim exists. Thread-safe.
class Claim {
 public:
  Claim() = default;  // none
  /// kUnavailable if this process would then have more than `most` on the device.
  static Result<Claim> take(const DeviceId& device, int blocks, int most);
  ~Claim();
  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&& other) noexcept;

 private:
  DeviceId device_{};
  int blocks_ = 0;
};

/// Blocks on the device that this process has claimed.
int claimed(const DeviceId& device);

}  // namespace rondo::device
