// How kernels on one GPU reach the memory of another one. CUDA and NVML know; the slowest way
// between any two ranks decides how a communicator is laid out.
#pragma once

#include <span>

#include "rondo/status.hpp"
#include "transport/cuda_ipc/cuda_calls.hpp"
#include "transport/cuda_ipc/placement.hpp"

namespace rondo::transport::cuda_ipc {

/// From `device` to `peer`, by their numbers in this process.
Result<Reach> reach_between(CudaCalls& cuda, int device, int peer);

/// The slowest from `own` to any of `places`. A GPU that this process does not see
/// (CUDA_VISIBLE_DEVICES) counts as a peer, unless NVML knows of NVLink: importing its memory will
/// tell.
Result<Reach> slowest_reach(CudaCalls& cuda, const DevicePlace& own,
                            std::span<const DevicePlace> places);

}  // namespace rondo::transport::cuda_ipc
