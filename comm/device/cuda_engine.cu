#include <cuda_runtime.h>

#include "comm/device/cuda_engine.hpp"
#include "kernels/cuda/device.cuh"

namespace rondo::engine {
namespace {

struct DeviceAccess {
  __device__ static uint64_t peek(const uint64_t* word) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  __device__ static uint64_t load(const uint64_t* word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  template <class T>
  __device__ static void write(T& to, const T& value) {
    to = value;
  }
  // Between the threads of one GPU, and of one process, a fence need not reach beyond the L2.
  __device__ static void order(bool one_gpu) {
    if (one_gpu) {
      asm volatile("fence.acq_rel.gpu;" : : : "memory");
    } else {
      asm volatile("fence.acq_rel.sys;" : : : "memory");
    }
  }
  __device__ static void store(uint64_t* word, uint64_t value) {
    asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(word), "l"(value) : "memory");
  }
  // Elements of a vector are accessed as if one by one: a half is whole.
  __device__ static LlLine load_ll(const LlLine* line) {
    LlLine value;
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.halves[0]), "=l"(value.halves[1])
                 : "l"(line)
                 : "memory");
    return value;
  }
  __device__ static void store_ll(LlLine* line, const LlLine& value) {
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};"
                 :
                 : "l"(line), "l"(value.halves[0]), "l"(value.halves[1])
                 : "memory");
  }
};

struct DeviceBlock {
  static constexpr uint32_t kPolls = 4096;
  BlockShared& memory;

  __device__ uint32_t number() const { return threadIdx.x; }
  __device__ uint32_t size() const { return blockDim.x; }
  // Orders what the block's threads wrote before what any of them then releases, for everybody who
  // acquires that (causality order of the PTX memory model is transitive over barriers).
  __device__ void sync() { __syncthreads(); }
  __device__ BlockShared& shared() { return memory; }
  __device__ uint32_t raise(uint32_t& word, uint32_t bits) { return atomicOr(&word, bits); }
  __device__ uint64_t now_ns() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
  }
  __device__ void rest() {}
  __device__ void move(DataType type, ReduceOp op, const kernels::Move& whole) {
    kernels::cuda::move_share<kernels::cuda::DeviceFloats>(
        type, op, whole, {.thread = threadIdx.x, .threads = blockDim.x});
  }
};

// What CUDA lets a kernel have everywhere.
static_assert(sizeof(DeviceLinks) + sizeof(DeviceGroup) <= 4096);

__global__ void __launch_bounds__(kWalkThreads, 1)
    walk(const __grid_constant__ DeviceLinks links, const __grid_constant__ DeviceGroup group) {
  __shared__ BlockShared shared;
  DeviceBlock block{shared};
  walk_group<DeviceBlock, DeviceAccess>(links, group, blockIdx.x, block);
}

__global__ void __launch_bounds__(kLlWalkThreads, 1)
    walk_ll(const __grid_constant__ DeviceLinks links, const __grid_constant__ DeviceGroup group) {
  __shared__ BlockShared shared;
  DeviceBlock block{shared};
  walk_ll_group<DeviceBlock, DeviceAccess>(links, group, blockIdx.x, block);
}

}  // namespace

const void* walk_ll_kernel() { return reinterpret_cast<const void*>(&walk_ll); }
const void* walk_kernel() { return reinterpret_cast<const void*>(&walk); }

}  // namespace rondo::engine
