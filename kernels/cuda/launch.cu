#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.hpp"

namespace rondo::kernels::cuda {
namespace {

constexpr int kThreads = 512;  // of a block: enough loads in flight, and 128 registers each

struct FoldArguments {
  const std::byte* sources[kMaxOperands];
  std::byte* destinations[kMaxOperands];
  double factors[kMaxOperands];
  uint32_t source_count, destination_count, divisor;
  size_t count;
  DataType type;
  ReduceOp op;
  bool scaled;
};

__global__ void __launch_bounds__(kThreads, 1)
    move_kernel(const __grid_constant__ FoldArguments a) {
  const Move move = {.sources = a.sources,
                     .destinations = a.destinations,
                     .source_count = a.source_count,
                     .destination_count = a.destination_count,
                     .count = a.count,
                     .divisor = a.divisor,
                     .nontemporal = 0,
                     .factors = a.scaled ? a.factors : nullptr};
  const Share share = {.thread = size_t{blockIdx.x} * blockDim.x + threadIdx.x,
                       .threads = size_t{gridDim.x} * blockDim.x};
  move_share<DeviceFloats>(a.type, a.op, move, share);
}

Status error(const char* what, cudaError_t code) {
  return {Code::kSystem, std::string(what) + ": " + cudaGetErrorString(code)};
}

}  // namespace

Status launch_move(DataType type, ReduceOp op, const Move& move, void* stream, int blocks) {
  if (!supports(type, op) || move.source_count < 1 || move.source_count > kMaxOperands ||
      move.destination_count < 1 || move.destination_count > kMaxOperands) {
    return {Code::kInvalidArgument, "a move on the device has 1 to " +
                                        std::to_string(kMaxOperands) +
                                        " sources and destinations, and an operator of its type"};
  }
  if (move.count == 0) return {};
  FoldArguments a = {};
  for (uint32_t s = 0; s < move.source_count; ++s) {
    a.sources[s] = move.sources[s];
    if (move.factors != nullptr) a.factors[s] = move.factors[s];
  }
  for (uint32_t j = 0; j < move.destination_count; ++j) a.destinations[j] = move.destinations[j];
  a.source_count = move.source_count;
  a.destination_count = move.destination_count;
  a.divisor = move.divisor;
  a.count = move.count;
  a.type = type;
  a.op = op;
  a.scaled = move.factors != nullptr;

  if (blocks == 0) {
    int device = 0;
    if (const cudaError_t code = cudaGetDevice(&device)) return error("cudaGetDevice", code);
    const cudaError_t code =
        cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
    if (code != cudaSuccess) return error("cudaDeviceGetAttribute", code);
  }
  move_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  const cudaError_t code = cudaGetLastError();
  return code == cudaSuccess ? Status() : error("launching a move", code);
}

}  // namespace rondo::kernels::cuda
