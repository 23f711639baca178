// Included before nccl-tests' verifiable.cu, which scripts/nccl-tests --host compiles for the host: a kernel is a function
// that runs once for each thread of the grid, when it is launched, in the thread that launches it. So NVIDIA's own code
// fills the buffers and verifies the results. The script writes launch_on_host for cudaLaunchKernel, and Launchable for
// the address of a kernel. Needs CUDA's headers; what they make attributes of (__global__), a host compiler ignores.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

// What a kernel knows of its place; nccl-tests' grids have one dimension.
static thread_local dim3 gridDim, blockDim;
static thread_local uint3 blockIdx, threadIdx;

using HostKernel = void (*)(void** arguments);

/// Launchable<kernel>::run is a HostKernel: it calls the kernel with copies of the arguments.
template <auto kKernel>
struct Launchable;
template <class... Argument, void (*kKernel)(Argument...)>
struct Launchable<kKernel> {
  static void run(void** arguments) { call(arguments, std::index_sequence_for<Argument...>()); }

 private:
  template <std::size_t... kIndex>
  static void call(void** arguments, std::index_sequence<kIndex...> /*each*/) {
    kKernel(*static_cast<Argument*>(arguments[kIndex])...);
  }
};

inline cudaError_t launch_on_host(HostKernel kernel, dim3 grid, dim3 block, void** arguments,
                                  std::size_t /*shared_bytes*/, cudaStream_t /*stream*/) {
  gridDim = grid;
  blockDim = block;
  for (blockIdx = {}; blockIdx.x < grid.x; ++blockIdx.x) {
    for (threadIdx = {}; threadIdx.x < block.x; ++threadIdx.x) kernel(arguments);
  }
  return cudaSuccess;
}
