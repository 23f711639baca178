// The order of rondo-perf's calls of CUDA, whose functions the linker replaces (--wrap) by ones that
// only take note.
#include "bench/backends/cuda_memory.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/harness/catch.hpp"

namespace {

std::vector<std::string> calls;

intptr_t events_made = 0;
int graphs_launched = 0, graphs_done = 0, most_ahead = 0;
std::map<cudaEvent_t, int> recorded_after;  // how many graphs were launched before

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
cudaError_t __wrap_cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(++events_made);
  return cudaSuccess;
}
cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  recorded_after[event] = graphs_launched;
  return cudaSuccess;
}
/// The GPU is as far behind as it can be: it replays the next graph when it is waited for.
cudaError_t __wrap_cudaEventQuery(cudaEvent_t event) {
  if (graphs_done >= recorded_after[event]) return cudaSuccess;
  ++graphs_done;
  return cudaErrorNotReady;
}
cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  ++graphs_launched;
  most_ahead = std::max(most_ahead, graphs_launched - graphs_done);
  return cudaSuccess;
}
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

TEST_CASE("However many replays there are, few are ahead of the GPU") {
  auto memory = open_cuda_memory(0);
  REQUIRE(memory.ok());
  for (int i = 0; i < 1000; ++i) REQUIRE((*memory)->replay().ok());
  CHECK(graphs_launched == 1000);
  CHECK(most_ahead > 1);
  CHECK(most_ahead <= 24);
}

}  // namespace
}  // namespace rondo::bench
