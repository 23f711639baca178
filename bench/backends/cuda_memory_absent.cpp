// Replaces cuda_memory.cpp in a build without CUDA.
#include "bench/backends/cuda_memory.hpp"

namespace rondo::bench {

Result<std::unique_ptr<CudaMemory>> open_cuda_memory(int) {
  return Status(Code::kUnavailable,
                "--device cuda is not in this build: build it where nvcc is, or use --device cpu");
}

}  // namespace rondo::bench
