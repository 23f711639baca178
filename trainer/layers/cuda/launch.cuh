// kernel_entry() (launch.hpp) as .cu files define it for the kernels that they list.
#pragma once

#include <vector>

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

  // Needs compute capability 8.0. volatile and "memory" keep these between the meetings that order
  // them.
  __device__ static void copy_async(void* to, const void* from, bool inside) {
    const uint32_t bytes = inside ? 16 : 0;  // the rest of the 16 is cleared
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(in_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  }
  __device__ static void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
  template <class Bits>
  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<Bits, Float16Bits>) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
          "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }
  __device__ static void load_matrices(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(in_shared(row))
                 : "memory");
  }
  __device__ static void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(in_shared(row))
                 : "memory");
  }
  __device__ static uint32_t in_shared(const void* generic) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(generic));
  }
};

/// How many blocks of a kernel are to fit on a multiprocessor at once, if it says so.
template <class Kernel>
consteval uint32_t blocks_at_once() {
  if constexpr (requires { Kernel::kBlocksAtOnce; }) {
    return Kernel::kBlocksAtOnce;
  } else {
    return 0;  // nvcc decides
  }
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, blocks_at_once<Kernel>())
    run_kernel(const __grid_constant__ Kernel kernel) {
  GpuBlock block;
  kernel.run(block);
}

}  // namespace

template <class Kernel>
const void* kernel_entry() {
  return reinterpret_cast<const void*>(&run_kernel<Kernel>);
}

/// Has kernel_entry() compiled for these kernels.
struct Link {
  std::vector<const void* (*)()>& entries;
  template <class... Kernels>
  void operator()(const Kernels*...) const {
    (entries.push_back(&kernel_entry<Kernels>), ...);
  }
};

}  // namespace rondo::trainer::cuda
