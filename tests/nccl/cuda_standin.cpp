// Stands in for CUDA's runtime where no GPU is, for nccl-tests: memory is the host's, and a device is a number. Every call
// has done its work when it returns; so streams keep their order, and an event is a time.
//
// Refuses to run what was compiled for a GPU: the launch of a kernel is an error, whose message names it and which later
// calls report, too. Refuses to capture. Thread rule: any thread.
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

// What nccl-tests know of CUDA 13, in declarations of rondo's own.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotSupported = 801
};
enum { cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76 };
using cudaStream_t = struct CUstream_st*;  // null: the default stream
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
using cudaKernel_t = struct CUkern_st*;
/// dim3
struct cudaDim3 {
  unsigned x, y, z;
};
/// The first 600 of its 1,008 bytes.
struct cudaDeviceProp {
  char name[256];
  char ids[32];
  size_t totalGlobalMem;
  char rest[304];
};

namespace {

constexpr int kDevices = 64;
using Clock = std::chrono::steady_clock;

/// The first refused launch, which later calls report, because kernel<<<...>>>() reports nothing.
std::atomic<cudaError_t> failure{cudaSuccess};

std::mutex mutex;
/// The kernels' names, by the address of the host's function. Guarded by `mutex`, never destroyed: programs launch until
/// they exit.
auto& kernel_names = *new std::map<const void*, const char*>;

struct LaunchConfiguration {
  cudaDim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local LaunchConfiguration configuration;

size_t machine_bytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

bool is_device(int device) { return device >= 0 && device < kDevices; }

/// Whole pages, as cudaMalloc's memory, so that it can be registered.
cudaError_t allocate(void** pointer, size_t bytes) {
  const size_t page = 4096;
  *pointer = std::aligned_alloc(page, bytes == 0 ? page : (bytes + page - 1) / page * page);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t refuse_launch(const void* kernel) {
  const std::lock_guard lock(mutex);
  const auto found = kernel_names.find(kernel);
  const char* const name = found == kernel_names.end() ? "one without a name" : found->second;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::fprintf(stderr, "CUDA stand-in: a kernel was compiled for a GPU and cannot run here: %s\n",
               readable != nullptr ? readable.get() : name);
  failure = cudaErrorNotSupported;
  return cudaErrorNotSupported;
}

}  // namespace

struct CUevent_st {
  Clock::time_point time;
};

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return is_device(device) ? cudaSuccess : cudaErrorInvalidDevice;
}
/// Nine for either part of the compute capability: nccl-tests leave out float8 below.
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  if (attribute != cudaDevAttrComputeCapabilityMajor &&
      attribute != cudaDevAttrComputeCapabilityMinor) {
    return cudaErrorNotSupported;
  }
  *value = 9;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return cudaErrorInvalidDevice;
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "host memory (stand-in)");
  properties->totalGlobalMem = machine_bytes();
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return failure; }
cudaError_t cudaDeviceReset() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "no such device: the stand-in has 64";
    case cudaErrorNotSupported:
      return "not supported by the stand-in, which has no GPU";
    default:
      return "invalid argument";
  }
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes); }
cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned /*flags*/) {
  return allocate(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = machine_bytes();
  return cudaSuccess;
}
cudaError_t cudaMemset(void* pointer, int byte, size_t bytes) {
  std::memset(pointer, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, int /*kind*/) {
  std::memmove(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}

/// Nobody looks into a stream, so one serves all.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  static char the_stream;
  *stream = reinterpret_cast<cudaStream_t>(&the_stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t /*stream*/) { return failure; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  event->time = Clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* kernel, cudaDim3 /*grid*/, cudaDim3 /*block*/,
                             void** /*arguments*/, size_t /*shared_bytes*/,
                             cudaStream_t /*stream*/) {
  return refuse_launch(kernel);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, int /*mode*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* /*graph*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* /*made*/, cudaGraph_t /*graph*/,
                                 unsigned long long /*flags*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t /*graph*/, cudaStream_t /*stream*/) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t /*graph*/) { return cudaErrorNotSupported; }
cudaError_t cudaGraphDestroy(cudaGraph_t /*graph*/) { return cudaErrorNotSupported; }

void** __cudaRegisterFatBinary(const void* /*binary*/) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}
void __cudaRegisterFunction(void** /*handle*/, const char* host, char* /*device*/, const char* name,
                            int /*thread_limit*/, void* /*thread*/, void* /*block*/,
                            cudaDim3* /*block_dim*/, cudaDim3* /*grid_dim*/, int* /*warp_size*/) {
  const std::lock_guard lock(mutex);
  kernel_names.emplace(host, name);
}
unsigned __cudaPushCallConfiguration(cudaDim3 grid, cudaDim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  configuration = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(cudaDim3* grid, cudaDim3* block, size_t* shared_bytes,
                                       cudaStream_t* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *stream = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* kernel) {
  *handle = static_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, cudaDim3 grid, cudaDim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

}  // extern "C"
