// In the place of CUDA's driver, libcuda.so.1, for driver_test.cpp: the calls of nccl/driver.cpp. Device
// memory is the host's. There are two devices, of which a thread's is the first one unless it changes
// that, and all streams are of the second. A stream is a number: how often it is asked before it has passed a copy.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kNotReady = 600;
struct {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
} copy;
void* pinned = nullptr;
intptr_t recorded = 0;  // the stream
int contexts[2] = {};   // of two devices
thread_local std::vector<void*> current = {&contexts[0]};

/// An event and a stream, the default one too, are those of the current context.
int on_second_device() { return current.back() == &contexts[1] ? 0 : 201; }

}  // namespace

extern "C" {

int driver_captures = 0, driver_asked = 0, driver_ended_well = 0;

int cuInit(unsigned) { return 0; }
int cuGetErrorString(int, const char** text) { return *text = "failed", 0; }
int cuDeviceGetCount(int* count) { return *count = 2, 0; }
int cuCtxGetCurrent(void** its) { return *its = current.back(), 0; }
int cuCtxSetCurrent(void* context) { return current.back() = context, 0; }
int cuCtxPushCurrent_v2(void* context) { return current.push_back(context), 0; }
int cuCtxPopCurrent_v2(void** context) {
  *context = current.back();
  current.pop_back();
  return 0;
}
int cuCtxGetDevice(int* device) {
  *device = current.back() == &contexts[1] ? 1 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** of, int device) { return *of = &contexts[device], 0; }
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
  if (to != pinned || on_second_device() != 0) return 1;
  copy = {to, reinterpret_cast<const void*>(from), bytes};  // NOLINT: as above
  return 0;
}
int cuStreamIsCapturing(void*, int* captured) {
  *captured = driver_captures;
  return on_second_device();
}
int cuEventCreate(void** event, unsigned) {
  *event = &recorded;
  return on_second_device();
}
int cuEventDestroy_v2(void*) {
  driver_ended_well = on_second_device() == 0;
  return 0;
}
int cuEventRecord(void*, void* stream) {
  recorded = reinterpret_cast<intptr_t>(stream);
  return on_second_device();
}
int cuEventQuery(void*) {
  if (++driver_asked < static_cast<int>(recorded)) return kNotReady;
  std::memcpy(copy.to, copy.from, copy.bytes);
  return 0;
}
}
