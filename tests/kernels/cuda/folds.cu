// Some folds, for loads_test.py to compile and look at: sums with each number of vectors at once, and
// operators and types of each kind. Never executed.
#include "kernels/cuda/device.cuh"

namespace rondo::kernels::cuda {

constexpr int kThreads = 512;  // the engine's block: 128 registers for each

template <class E, class Op>
__global__ void __launch_bounds__(kThreads, 1) one(const __grid_constant__ Move move) {
  fold<E, Op>(move, {.thread = threadIdx.x, .threads = blockDim.x});
}

template __global__ void one<Native<float>, Sum>(const __grid_constant__ Move);
template __global__ void one<Native<float>, ScaledSum>(const __grid_constant__ Move);
template __global__ void one<Native<double>, Sum>(const __grid_constant__ Move);
template __global__ void one<DeviceBFloat16, Sum>(const __grid_constant__ Move);
template __global__ void one<DeviceHalf, Max>(const __grid_constant__ Move);
template __global__ void one<DeviceE4M3, Sum>(const __grid_constant__ Move);
template __global__ void one<Native<int32_t>, ScaledSum>(const __grid_constant__ Move);
template __global__ void one<Native<uint8_t>, BitXor>(const __grid_constant__ Move);

__global__ void __launch_bounds__(kThreads, 1) copies(const __grid_constant__ Move move) {
  copy(move, 4, {.thread = threadIdx.x, .threads = blockDim.x});
}

}  // namespace rondo::kernels::cuda
