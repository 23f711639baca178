// The interpreter compiled for the device: proof, wherever nvcc is found, that the template the
// host walks is device code too. The engine below has the shape that the CUDA engine will have
// (slots in mapped memory, polled flags, one thread block per channel); it is compiled and linked,
// and nothing launches it yet.
#include <cuda_runtime.h>

#include "comm/engine/interpreter.hpp"

namespace rondo::engine {

namespace {

// What a device channel sees: everything trivially copyable.
struct DeviceChannel {
  ProgramView program;
  schedule::Geometry geometry;
  const float* in;
  float* out;
  const float* const* slots_in;    // by peer: the slot that is being read
  float* const* slots_out;         // by peer: the slot that is being written
  const volatile uint64_t* ready;  // by peer: slices published so far
  volatile uint64_t* published;    // slices this rank has published
};

// Primitives for sums of fp32 by one block; a move needs every peer's slice of this position.
struct DeviceEngine {
  const DeviceChannel& channel;
  uint64_t consumed = 0;

  __device__ const float* source(const schedule::Location& operand, uint64_t offset) const {
    switch (operand.place) {
      case schedule::Place::kIn:
        return channel.in + operand.offset + offset;
      case schedule::Place::kOut:
        return channel.out + operand.offset + offset;
      default:
        return channel.slots_in[operand.peer];
    }
  }

  __device__ Progress try_move(const SliceMove& move) {
    const schedule::Instruction& instruction = *move.instruction;
    for (uint32_t i = 0; i < instruction.sources; ++i) {
      const schedule::Location& operand = move.operands[i];
      if (operand.place == schedule::Place::kSlot && channel.ready[operand.peer] <= consumed)
        return Progress::kBlocked;
    }
    for (uint64_t e = threadIdx.x; e < move.length; e += blockDim.x) {
      float sum = source(move.operands[0], move.offset)[e];
      for (uint32_t i = 1; i < instruction.sources; ++i)
        sum += source(move.operands[i], move.offset)[e];
      for (uint32_t j = 0; j < instruction.destinations; ++j) {
        const schedule::Location& to = move.operands[instruction.sources + j];
        if (to.place == schedule::Place::kOut) {
          channel.out[to.offset + move.offset + e] = sum;
        } else {
          channel.slots_out[to.peer][e] = sum;
        }
      }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) *channel.published = *channel.published + 1;
    ++consumed;
    return Progress::kDone;
  }

  __device__ Progress try_wait(const schedule::Instruction& instruction) {
    return channel.ready[instruction.peer] > consumed ? Progress::kDone : Progress::kBlocked;
  }

  __device__ void signal() {
    __threadfence_system();
    if (threadIdx.x == 0) *channel.published = *channel.published + 1;
  }
};

__global__ void walk(const DeviceChannel* channels, int* progress, long long clock_limit) {
  const DeviceChannel& channel = channels[blockIdx.x];
  DeviceEngine engine{channel};
  Cursor cursor;
  const long long start = clock64();
  Progress made;
  do {
    made = advance(channel.program, channel.geometry, cursor, engine, 64u);
  } while (made != Progress::kDone && made != Progress::kFailed && clock64() - start < clock_limit);
  if (threadIdx.x == 0) progress[blockIdx.x] = static_cast<int>(made);
}

}  // namespace

/// The kernel's address, so that the linker keeps it.
const void* device_interpreter() { return reinterpret_cast<const void*>(&walk); }

}  // namespace rondo::engine
