// Moves as kernels of their own, for tests and measurements; collectives do theirs inside a
// persistent kernel (comm/engine). There is an implementation where there is nvcc.
#pragma once

#include "kernels/reduce.hpp"
#include "rondo/status.hpp"

namespace rondo::kernels::cuda {

/// Sources, and destinations, of one launch.
inline constexpr uint32_t kMaxOperands = 64;

/// Enqueues a move on `stream`, a cudaStream_t, of the current device. The arrays of `move` are the
/// host's and may go at once; what they point to is memory that the device reaches, until the
/// stream has come past. `blocks`: thread blocks, one per multiprocessor at a time; 0: one for
/// each. kInvalidArgument: too many operands, or a type without that operator. kSystem: CUDA's own
/// error.
Status launch_move(DataType type, ReduceOp op, const Move& move, void* stream, int blocks = 0);

}  // namespace rondo::kernels::cuda
