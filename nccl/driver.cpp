// See driver.hpp. The types are those of cuda.h: a CUresult and a CUdevice are ints, a CUdeviceptr is
// 64 bits wide, a stream is a pointer.
#include "nccl/driver.hpp"

#include <dlfcn.h>
#include <sched.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace rondo::nccl::driver {
namespace {

constexpr const char* kHostHint = "; RONDO_NCCL_HOST=1 is for buffers in host memory";

struct DriverCalls {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  int (*init)(unsigned) = nullptr;
  int (*error_string)(int, const char**) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*current_context)(void**) = nullptr;
  int (*set_context)(void*) = nullptr;
  int (*device_of_context)(int*) = nullptr;
  int (*primary_context)(void**, int) = nullptr;
  int (*push_context)(void*) = nullptr;
  int (*pop_context)(void**) = nullptr;
  int (*allocate)(uint64_t*, size_t) = nullptr;
  int (*free)(uint64_t) = nullptr;
  int (*allocate_host)(void**, size_t, unsigned) = nullptr;
  int (*copy)(void*, uint64_t, size_t, void*) = nullptr;
  int (*free_host)(void*) = nullptr;
  int (*is_capturing)(void*, int*) = nullptr;
  int (*create_event)(void**, unsigned) = nullptr;
  int (*destroy_event)(void*) = nullptr;
  int (*record)(void*, void*) = nullptr;
  int (*query)(void*) = nullptr;
  Status status;

  DriverCalls() {
    if (library == nullptr) {
      status = {Code::kSystem,
                std::string("there is no CUDA driver on this machine (libcuda.so.1)") + kHostHint};
      return;
    }
    find("cuInit", init);
    find("cuGetErrorString", error_string);
    find("cuDeviceGetCount", device_count);
    find("cuCtxGetCurrent", current_context);
    find("cuCtxSetCurrent", set_context);
    find("cuCtxGetDevice", device_of_context);
    find("cuDevicePrimaryCtxRetain", primary_context);
    find("cuCtxPushCurrent_v2", push_context);
    find("cuCtxPopCurrent_v2", pop_context);
    find("cuMemAlloc_v2", allocate);
    find("cuMemFree_v2", free);
    find("cuMemcpyDtoHAsync_v2", copy);
    find("cuMemHostAlloc", allocate_host);
    find("cuStreamIsCapturing", is_capturing);
    find("cuMemFreeHost", free_host);
    find("cuEventCreate", create_event);
    find("cuEventDestroy_v2", destroy_event);
    find("cuEventRecord", record);
    find("cuEventQuery", query);
    if (status.ok()) status = check(init(0), "cuInit");
    if (!status.ok()) status = {Code::kSystem, status.message() + kHostHint};
  }

  template <class Function>
  void find(const char* name, Function& into) {
    into = reinterpret_cast<Function>(dlsym(library, name));
    if (into == nullptr && status.ok()) {
      status = {Code::kSystem, std::string("libcuda.so.1 has no ") + name};
    }
  }

  Status check(int result, const char* call) const {
    if (result == 0) return {};
    const char* text = nullptr;
    error_string(result, &text);
    return {Code::kSystem, std::string(call) + ": " + (text != nullptr ? text : "failed")};
  }
};

Result<const DriverCalls*> calls() {
  static const DriverCalls it;
  if (!it.status.ok()) return it.status;
  return &it;
}

/// The driver's calls need a context: device 0's, unless the thread has one.
Result<const DriverCalls*> calls_in_context() {
  const DriverCalls* it = RONDO_TRY(calls());
  void* context = nullptr;
  RONDO_TRY(it->check(it->current_context(&context), "cuCtxGetCurrent"));
  if (context != nullptr) return it;
  RONDO_TRY(it->check(it->primary_context(&context, 0), "cuDevicePrimaryCtxRetain"));
  RONDO_TRY(it->check(it->set_context(context), "cuCtxSetCurrent"));
  return it;
}

/// The thread's context is this one until the end, then its own again.
class ContextScope {
 public:
  ContextScope(const DriverCalls& calls, void* context)
      : calls_(calls), status_(calls.check(calls.push_context(context), "cuCtxPushCurrent")) {}
  ~ContextScope() {
    void* context = nullptr;
    if (status_.ok()) (void)calls_.pop_context(&context);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  const Status& status() const { return status_; }

 private:
  const DriverCalls& calls_;
  Status status_;
};

}  // namespace

Result<int> current_device() {
  const DriverCalls* it = RONDO_TRY(calls());
  void* context = nullptr;
  RONDO_TRY(it->check(it->current_context(&context), "cuCtxGetCurrent"));
  int device = 0;
  if (context != nullptr) RONDO_TRY(it->check(it->device_of_context(&device), "cuCtxGetDevice"));
  return device;
}

Result<int> device_count() {
  const DriverCalls* it = RONDO_TRY(calls());
  int count = 0;
  RONDO_TRY(it->check(it->device_count(&count), "cuDeviceGetCount"));
  return count;
}

Result<void*> allocate(size_t bytes) {
  const DriverCalls* it = RONDO_TRY(calls_in_context());
  uint64_t address = 0;
  RONDO_TRY(it->check(it->allocate(&address, bytes), "cuMemAlloc"));
  return reinterpret_cast<void*>(address);  // NOLINT: the driver's pointers are numbers
}

Status free(void* pointer) {
  const DriverCalls* it = RONDO_TRY(calls_in_context());
  return it->check(it->free(reinterpret_cast<uint64_t>(pointer)), "cuMemFree");
}

Result<std::unique_ptr<ScalarReader>> ScalarReader::make(int device) {
  constexpr size_t kBytes = 64;
  constexpr unsigned kPortable = 1, kNoTiming = 2;  // memory for all contexts; an event for order
  const DriverCalls* it = RONDO_TRY(calls());
  std::unique_ptr<ScalarReader> made(new ScalarReader);
  // Held until the process ends, as the communicator's own.
  RONDO_TRY(it->check(it->primary_context(&made->context_, device), "cuDevicePrimaryCtxRetain"));
  const ContextScope scope(*it, made->context_);
  RONDO_TRY(scope.status());
  RONDO_TRY(it->check(it->allocate_host(&made->pinned_, kBytes, kPortable), "cuMemHostAlloc"));
  RONDO_TRY(it->check(it->create_event(&made->event_, kNoTiming), "cuEventCreate"));
  return made;
}

ScalarReader::~ScalarReader() {
  const Result<const DriverCalls*> it = calls();
  if (!it.ok() || context_ == nullptr) return;
  const ContextScope scope(**it, context_);
  if (event_ != nullptr) (void)(*it)->destroy_event(event_);
  if (pinned_ != nullptr) (void)(*it)->free_host(pinned_);
}

Status ScalarReader::read(void* into, const void* from, size_t bytes, void* stream) {
  constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY
  const DriverCalls* it = RONDO_TRY(calls());
  const ContextScope scope(*it, context_);
  RONDO_TRY(scope.status());
  int captured = 0;
  RONDO_TRY(it->check(it->is_capturing(stream, &captured), "cuStreamIsCapturing"));
  if (captured != 0) {
    return {
        Code::kInvalidArgument,
        "the operator's scalar is in device memory and is read at the call, which a stream that "
        "is being captured does not allow: make the operator with ncclScalarHostImmediate"};
  }
  // To memory that is not pinned CUDA may wait with a lock of the context's: no other thread could
  // then carry out what the stream waits for.
  RONDO_TRY(it->check(it->copy(pinned_, reinterpret_cast<uint64_t>(from), bytes, stream),
                      "cuMemcpyDtoHAsync"));
  RONDO_TRY(it->check(it->record(event_, stream), "cuEventRecord"));
  int there = kNotReady;
  while ((there = it->query(event_)) == kNotReady) sched_yield();
  RONDO_TRY(it->check(there, "cuEventQuery"));
  std::memcpy(into, pinned_, bytes);
  return {};
}

}  // namespace rondo::nccl::driver
