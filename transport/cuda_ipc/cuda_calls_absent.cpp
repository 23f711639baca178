// Stands in for cuda_calls.cpp in a build without CUDA.
#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::transport::cuda_ipc {

Result<std::unique_ptr<CudaCalls>> open_cuda() {
  return Status(Code::kUnavailable, "this rondo was built without CUDA: build it where nvcc is");
}

}  // namespace rondo::transport::cuda_ipc
