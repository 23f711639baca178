// A rank's GPU while a communicator is set up: opened, and what the other ranks are told of it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/base/host_map.hpp"
#include "comm/device/backend.hpp"
#include "transport/cuda_ipc/placement.hpp"

namespace rondo::device {

/// What a rank says of its GPU at first. Sent as bytes of one build of rondo, like DeviceReach.
struct DeviceFacts {
  transport::cuda_ipc::DevicePlace place;
  int32_t blocks_at_once;  // of a kernel, on a multiprocessor
};

/// What it says once it knows the facts of all.
struct DeviceReach {
  transport::cuda_ipc::Reach slowest;  // of the ways to the host's other GPUs
  bool gpu_direct;                     // slots for other hosts may lie on this GPU
};

struct OpenedDevice {
  int device;  // Config::device
  GpuBackend backend;
  DeviceFacts facts;
};

/// For a communicator of so many ranks. kUnavailable, kInvalidArgument: there is no such device, or
/// rondo cannot use it.
Result<OpenedDevice> open_device(int device, int ranks);

/// `all`: by rank. `wire_reaches_gpus`: whether links to other hosts can go by GPUDirect.
Result<DeviceReach> find_reach(const OpenedDevice& own, std::span<const DeviceFacts> all,
                               const base::HostMap& hosts, int rank,
                               const std::function<Result<bool>()>& wire_reaches_gpus);

}  // namespace rondo::device
