// The order of rondo-perf's calls of CUDA, whose functions the linker replaces (--wrap) by ones that
// only take note.
#include "bench/backends/cuda_memory.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"

namespace {

std::vector<std::string> calls;

cudaError_t noted(const char* call) {
  calls.emplace_back(call);
  return cudaSuccess;
}

}  // namespace

extern "C" {
cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t __wrap_cudaSetDevice(int) { return cudaSuccess; }
cudaError_t __wrap_cudaStreamCreateWithFlags(cudaStream_t*, unsigned) { return cudaSuccess; }
cudaError_t __wrap_cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
cudaError_t __wrap_cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t __wrap_cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t __wrap_cudaEventCreate(cudaEvent_t*) { return cudaSuccess; }
cudaError_t __wrap_cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t __wrap_cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t __wrap_cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return noted("copy");
}
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t) { return noted("wait"); }
}

namespace rondo::bench {
namespace {

TEST_CASE("A copy between host and device waits for the stream first") {
  auto memory = open_cuda_memory(0);
  REQUIRE(memory.ok());
  void* const buffer = (*memory)->allocate(64);
  std::byte* const there = (*memory)->twin(buffer);
  const std::vector<std::string> expected = {"wait", "copy", "wait"};
  calls.clear();
  REQUIRE((*memory)->take(buffer, there, 64).ok());
  CHECK(calls == expected);
  calls.clear();
  REQUIRE((*memory)->give(there, buffer, 64).ok());
  CHECK(calls == expected);
}

}  // namespace
}  // namespace rondo::bench
