// Moves as separate kernels, for tests and measurements; collectives move data inside a persistent
// kernel (comm/device). Implemented where there is nvcc.
#pragma once

#include "kernels/reduce.hpp"
#include "rondo/status.hpp"

namespace rondo::kernels::cuda {

/// Maximum number of sources, and of destinations, of one launch.
inline constexpr uint32_t kMaxOperands = 64;

/// Enqueues a move on `stream`, a cudaStream_t, of the current device. The arrays of `move` are
/// host memory and may be freed after the call; they point to memory that the device can access,
/// which is in use until the stream has passed. `blocks`: thread blocks, one per multiprocessor at
/// a time; 0: one for each. kInvalidArgument: too many operands, or a type without that operator.
/// kSystem: CUDA's own error.
Status launch_move(DataType type, ReduceOp op, const Move& move, void* stream, int blocks = 0);

}  // namespace rondo::kernels::cuda
