// In the place of CUDA's driver, libcuda.so.1, for driver_test.cpp: the calls of nccl/driver.cpp. Device
// memory is the host's. A stream is a number: how often it is asked before it has passed a copy.
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kNotReady = 600;
struct {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
} copy;
void* pinned = nullptr;
intptr_t recorded = 0;  // the stream
int context = 0;

}  // namespace

extern "C" {

int driver_captures = 0, driver_asked = 0;

int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) { return *text = "failed", 0; }
int cuDeviceGetCount(int* count) { return *count = 1, 0; }
int cuCtxGetCurrent(void** current) { return *current = &context, 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxGetDevice(int* device) { return *device = 0, 0; }
int cuDevicePrimaryCtxRetain(void** of, int) { return *of = &context, 0; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  *address = reinterpret_cast<uint64_t>(std::malloc(bytes));
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  std::free(reinterpret_cast<void*>(address));  // NOLINT: the driver's pointers are numbers
  return 0;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = pinned = std::malloc(bytes);
  return 0;
}
int cuMemFreeHost(void* memory) {
  std::free(memory);
  return 0;
}
/// Refuses memory that is not pinned.
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
  if (to != pinned) return 1;
  copy = {to, reinterpret_cast<const void*>(from), bytes};  // NOLINT: as above
  return 0;
}
int cuStreamIsCapturing(void*, int* captured) { return *captured = driver_captures, 0; }
int cuEventCreate(void** event, unsigned) { return *event = &recorded, 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuEventRecord(void*, void* stream) { return recorded = reinterpret_cast<intptr_t>(stream), 0; }
int cuEventQuery(void*) {
  if (++driver_asked < static_cast<int>(recorded)) return kNotReady;
  std::memcpy(copy.to, copy.from, copy.bytes);
  return 0;
}
}
