// The kernel that carries an operation out: a block for each channel, resident until the operation
// ends. There is one where there is nvcc.
#pragma once

#include "comm/device/device_group.hpp"

namespace rondo::engine {

/// Threads of a block. One block on a multiprocessor at a time.
inline constexpr int kWalkThreads = 512;
/// Of a block of walk_ll_kernel(): little data, and every instruction of the walk is executed by all
/// warps, in turn.
inline constexpr int kLlWalkThreads = 256;

/// A __global__ function of (DeviceLinks, DeviceGroup), to be launched with as many blocks as an
/// operation of the group has channels, or its messages, all of them resident together with those
/// of every rank on the same device.
const void* walk_kernel();
/// The same for a group of nothing but operations by LL.
const void* walk_ll_kernel();

}  // namespace rondo::engine
