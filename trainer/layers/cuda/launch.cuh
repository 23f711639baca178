// launch() (launch.hpp) as .cu files define it for the kernels that they list.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/cuda/launch.hpp"

namespace rondo::trainer::cuda {
namespace {

struct GpuBlock {
  __device__ static uint32_t thread() { return threadIdx.x; }
  __device__ static Grid index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
  __device__ static void sync() { __syncthreads(); }
  template <class W>
  __device__ static W shuffle_xor(W value, uint32_t mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
  }
  template <class W>
  __device__ static W* shared() {
    extern __shared__ __align__(16) unsigned char memory[];
    return reinterpret_cast<W*>(memory);
  }
};

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads)
    run_kernel(const __grid_constant__ Kernel kernel) {
  GpuBlock block;
  kernel.run(block);
}

Status failed(const char* what, const std::string& doing, cudaError_t code) {
  return {Code::kSystem, std::string(what) + ": " + doing + ": " + cudaGetErrorString(code)};
}

}  // namespace

template <class Kernel>
Status launch(const char* what, const Kernel& kernel, void* stream) {
  const Grid grid = kernel.grid();
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
  const size_t shared = kernel.shared_bytes();
  constexpr size_t kWithoutAsking = size_t{48} << 10;
  if (shared > kWithoutAsking) {
    const cudaError_t code = cudaFuncSetAttribute(
        run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (code != cudaSuccess) {
      return failed(what, std::to_string(shared) + " bytes of shared memory", code);
    }
  }
  run_kernel<<<dim3(grid.x, grid.y, grid.z), Kernel::kThreads, shared,
               static_cast<cudaStream_t>(stream)>>>(kernel);
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return {};
  // A GPU's limits: 2^31 - 1 blocks in x, 65535 in y and in z.
  return failed(what,
                "launching " + std::to_string(grid.x) + " x " + std::to_string(grid.y) + " x " +
                    std::to_string(grid.z) + " blocks",
                code);
}

/// Has launch() compiled for these kernels.
template <class... Kernels>
void link(std::vector<const void*>& launches) {
  (launches.push_back(reinterpret_cast<const void*>(&launch<Kernels>)), ...);
}

}  // namespace rondo::trainer::cuda
