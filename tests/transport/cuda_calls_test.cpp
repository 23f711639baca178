// The real calls of CUDA, with some functions of its runtime replaced by the linker (--wrap): what
// happens to the error that a thread's earlier call has left.
#include "transport/cuda_ipc/cuda_calls.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "tests/harness/catch.hpp"

namespace {

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t launch_returns = cudaSuccess;

}  // namespace

extern "C" {
cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t __wrap_cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  if (launch_returns != cudaSuccess) last_error = launch_returns;
  return launch_returns;
}
}

namespace rondo::transport::cuda_ipc {
namespace {

TEST_CASE("A launch neither reports nor clears the application's error") {
  auto cuda = open_cuda();
  REQUIRE(cuda.ok());
  const Launch launch = {.kernel = nullptr,
                         .blocks = 1,
                         .threads = 1,
                         .shared_bytes = 0,
                         .arguments = nullptr,
                         .stream = nullptr};
  last_error = cudaErrorInvalidDevice;
  CHECK((*cuda)->launch(launch).ok());
  CHECK(last_error == cudaErrorInvalidDevice);

  launch_returns = cudaErrorInvalidConfiguration;
  const Status status = (*cuda)->launch(launch);
  launch_returns = cudaSuccess;
  CHECK(status.code() == Code::kSystem);
  CHECK(status.message().find("launching a kernel") == 0);
  // What rondo's own call has left is not the application's.
  CHECK(last_error == cudaSuccess);
}

}  // namespace
}  // namespace rondo::transport::cuda_ipc
