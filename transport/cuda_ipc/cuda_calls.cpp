// CUDA's runtime itself. Linked statically, it opens the driver at the first call: without a driver
// rondo starts as elsewhere, and open_cuda() returns the error.
#include "transport/cuda_ipc/cuda_calls.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "transport/cuda_ipc/nvml.hpp"

namespace rondo::transport::cuda_ipc {
namespace {

static_assert(sizeof(IpcHandle) == sizeof(cudaIpcMemHandle_t));

Status status_of(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  // An error that does not stick stays the thread's last one otherwise, and is then taken for a
  // later launch's.
  (void)cudaGetLastError();
  const Code ours = code == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kSystem;
  return {ours, std::string(what) + ": " + cudaGetErrorString(code)};
}

cudaStream_t native_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }
// The legacy stream, under either name, is never destroyed or captured, and must not be queried
// while another stream is captured.
bool is_legacy(Stream stream) {
  return stream == nullptr || native_stream(stream) == cudaStreamLegacy;
}
constexpr uint64_t kLegacyIdentity = ~uint64_t{0};
cudaEvent_t native_event(Event event) { return static_cast<cudaEvent_t>(event); }

// The driver's function of that name, or null. The runtime has the library open.
void* driver_function(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return driver == nullptr ? nullptr : dlsym(driver, name);
}

// What only the driver knows: 0 if it could be asked, as in its interface.
int ask_driver(void* answer, int attribute, const std::byte* memory) {
  using Ask = int (*)(void* answer, int attribute, unsigned long long pointer);
  static const Ask kAsk = reinterpret_cast<Ask>(driver_function("cuPointerGetAttribute"));
  constexpr int kNoDriver = 100;
  return kAsk == nullptr ? kNoDriver
                         : kAsk(answer, attribute, reinterpret_cast<unsigned long long>(memory));
}

// What cudaIpcGetMemHandle() would take is what cudaMalloc() has allocated. False if the driver
// cannot be asked.
bool comes_from_cuda_malloc(const std::byte* memory) {
  constexpr int kIsLegacyIpcCapable = 10;  // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
  int answer = 0;
  return ask_driver(&answer, kIsLegacyIpcCapable, memory) == 0 && answer != 0;
}

Result<Allocation> allocation_in(const std::byte* memory, int device) {
  constexpr int kRangeStart = 11;  // CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
  constexpr int kRangeSize = 12;   // CU_POINTER_ATTRIBUTE_RANGE_SIZE
  Allocation found = {.base = nullptr, .bytes = 0, .device = device};
  const int code = ask_driver(&found.base, kRangeStart, memory);
  if (code != 0 || ask_driver(&found.bytes, kRangeSize, memory) != 0) {
    return Status(Code::kSystem, "finding an allocation: the driver says " + std::to_string(code));
  }
  return found;
}

class RuntimeCalls final : public CudaCalls {
 public:
  Result<int> device_count() override {
    int count = 0;
    RONDO_TRY(status_of(cudaGetDeviceCount(&count), "counting devices"));
    return count;
  }

  Result<DeviceInfo> device_info(int device) override {
    cudaDeviceProp properties{};
    const cudaError_t code = cudaGetDeviceProperties(&properties, device);
    RONDO_TRY(status_of(code, "asking for a device's properties"));
    int mode = 0;
    RONDO_TRY(status_of(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, device),
                        "asking for a device's mode"));
    DeviceInfo info = {.name = properties.name,
                       .uuid = {},
                       .pci_bus = {},
                       .multiprocessors = properties.multiProcessorCount,
                       .major = properties.major,
                       .minor = properties.minor,
                       .memory_bytes = properties.totalGlobalMem,
                       .computes = mode != cudaComputeModeProhibited};
    const cudaError_t found =
        cudaDeviceGetPCIBusId(info.pci_bus.data(), static_cast<int>(info.pci_bus.size()), device);
    RONDO_TRY(status_of(found, "asking for a device's PCI bus"));
    static_assert(sizeof(properties.uuid) == sizeof(info.uuid));
    std::memcpy(info.uuid.data(), &properties.uuid, info.uuid.size());
    return info;
  }

  Result<int> current_device() override {
    int device = 0;
    RONDO_TRY(status_of(cudaGetDevice(&device), "asking for the current device"));
    return device;
  }
  Status set_device(int device) override {
    return status_of(cudaSetDevice(device), "choosing a device");
  }

  Result<bool> can_access_peer(int device, int peer) override {
    int can = 0;
    const cudaError_t code = cudaDeviceCanAccessPeer(&can, device, peer);
    RONDO_TRY(status_of(code, "asking for peer access"));
    return can != 0;
  }

  Status enable_peer_access(int peer) override {
    const cudaError_t code = cudaDeviceEnablePeerAccess(peer, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
      return {};
    }
    return status_of(code, "enabling peer access");
  }

  Result<bool> is_for_peers(const std::byte* memory) override {
    cudaPointerAttributes attributes{};
    RONDO_TRY(status_of(cudaPointerGetAttributes(&attributes, memory), "asking about memory"));
    return attributes.type != cudaMemoryTypeDevice || comes_from_cuda_malloc(memory);
  }

  Result<Allocation> allocation_of(const std::byte* memory) override {
    cudaPointerAttributes attributes{};
    RONDO_TRY(status_of(cudaPointerGetAttributes(&attributes, memory), "asking about memory"));
    if (attributes.type != cudaMemoryTypeDevice) return Allocation{nullptr, 0, -1};
    return allocation_in(memory, attributes.device);
  }

  bool has_nvlink(const char* bus, const char* peer_bus) override {
    return nvml_sees_nvlink(bus, peer_bus);
  }

  Result<std::byte*> allocate(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t code = cudaMalloc(&memory, bytes);
    RONDO_TRY(status_of(code, "allocating device memory"));
    return static_cast<std::byte*>(memory);
  }
  Status release(std::byte* memory) override {
    return status_of(cudaFree(memory), "freeing device memory");
  }

  Result<std::byte*> allocate_mapped(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t code =
        cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    RONDO_TRY(status_of(code, "allocating mapped host memory"));
    return static_cast<std::byte*>(memory);
  }
  Status release_mapped(std::byte* memory) override {
    return status_of(cudaFreeHost(memory), "freeing mapped host memory");
  }

  Status map_host(std::byte* memory, size_t bytes) override {
    const cudaError_t code =
        cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    RONDO_TRY(status_of(code, "mapping host memory"));
    void* there = nullptr;
    Status status = status_of(cudaHostGetDevicePointer(&there, memory, 0), "finding mapped memory");
    if (status.ok() && there != memory) {
      status = {Code::kUnavailable, "this GPU maps host memory at other addresses than the host's"};
    }
    if (!status.ok()) (void)cudaHostUnregister(memory);
    return status;
  }
  Status unmap_host(std::byte* memory) override {
    return status_of(cudaHostUnregister(memory), "unmapping host memory");
  }

  Result<IpcHandle> export_memory(std::byte* memory) override {
    cudaIpcMemHandle_t native;
    const cudaError_t code = cudaIpcGetMemHandle(&native, memory);
    RONDO_TRY(status_of(code, "exporting device memory"));
    IpcHandle handle;
    std::memcpy(handle.bytes.data(), &native, sizeof native);
    return handle;
  }
  Result<std::byte*> import_memory(const IpcHandle& handle) override {
    cudaIpcMemHandle_t native;
    std::memcpy(&native, handle.bytes.data(), sizeof native);
    void* memory = nullptr;
    const cudaError_t code = cudaIpcOpenMemHandle(&memory, native, cudaIpcMemLazyEnablePeerAccess);
    RONDO_TRY(status_of(code, "importing a peer's device memory"));
    return static_cast<std::byte*>(memory);
  }
  Status close_memory(std::byte* memory) override {
    return status_of(cudaIpcCloseMemHandle(memory), "closing a peer's device memory");
  }

  Status copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) override {
    return status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native_stream(stream)),
                     "copying");
  }
  Status clear(std::byte* memory, size_t bytes, Stream stream) override {
    return status_of(cudaMemsetAsync(memory, 0, bytes, native_stream(stream)), "clearing memory");
  }

  Result<Stream> create_stream() override {
    cudaStream_t stream = nullptr;
    const cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    RONDO_TRY(status_of(code, "creating a stream"));
    return Stream{stream};
  }
  Status destroy_stream(Stream stream) override {
    return status_of(cudaStreamDestroy(native_stream(stream)), "destroying a stream");
  }
  Result<uint64_t> identity_of(Stream stream) override {
    if (is_legacy(stream)) return kLegacyIdentity;
    unsigned long long identity = 0;
    RONDO_TRY(status_of(cudaStreamGetId(native_stream(stream), &identity), "identifying a stream"));
    return uint64_t{identity};
  }
  Result<bool> is_done(Stream stream) override {
    const cudaError_t code = cudaStreamQuery(native_stream(stream));
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    RONDO_TRY(status_of(code, "asking whether a stream is done"));
    return true;
  }
  Status synchronize(Stream stream) override {
    return status_of(cudaStreamSynchronize(native_stream(stream)), "waiting for a stream");
  }
  Status synchronize_device() override {
    return status_of(cudaDeviceSynchronize(), "waiting for a device");
  }

  Result<Event> create_event() override {
    cudaEvent_t event = nullptr;
    const cudaError_t code = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    RONDO_TRY(status_of(code, "creating an event"));
    return Event{event};
  }
  Status destroy_event(Event event) override {
    return status_of(cudaEventDestroy(native_event(event)), "destroying an event");
  }
  Status record(Event event, Stream stream) override {
    return status_of(cudaEventRecord(native_event(event), native_stream(stream)),
                     "recording an event");
  }
  Status wait(Stream stream, Event event) override {
    return status_of(cudaStreamWaitEvent(native_stream(stream), native_event(event), 0),
                     "making a stream wait");
  }
  Result<bool> has_happened(Event event) override {
    const cudaError_t code = cudaEventQuery(native_event(event));
    if (code == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    RONDO_TRY(status_of(code, "asking whether kernels have ended"));
    return true;
  }

  Status wait_for_word(Stream stream, const uint32_t* word, uint32_t value) override {
    constexpr unsigned kUntilReached = 0;  // CU_STREAM_WAIT_VALUE_GEQ
    using Wait = int (*)(void* stream, unsigned long long address, uint32_t value, unsigned flags);
    // Of CUDA 11.7 and later; the one before it has to be allowed by the driver's settings.
    static const Wait kWait = reinterpret_cast<Wait>(driver_function("cuStreamWaitValue32_v2"));
    if (kWait == nullptr) {
      return {Code::kUnavailable,
              "this driver has no cuStreamWaitValue32_v2: install one for CUDA 11.7 or later"};
    }
    const int code =
        kWait(stream, reinterpret_cast<unsigned long long>(word), value, kUntilReached);
    if (code == 0) return {};
    return {Code::kSystem,
            "making a stream wait for a word: the driver's error " + std::to_string(code)};
  }

  Result<uint64_t> capture_of(Stream stream) override {
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    unsigned long long graph = 0;
    if (is_legacy(stream)) return uint64_t{0};
    const cudaError_t code = cudaStreamGetCaptureInfo(native_stream(stream), &state, &graph);
    RONDO_TRY(status_of(code, "asking whether a stream is captured"));
    return state == cudaStreamCaptureStatusNone ? uint64_t{0} : uint64_t{graph};
  }
  Result<int> exchange_capture_mode(int mode) override {
    auto native = static_cast<cudaStreamCaptureMode>(mode);
    RONDO_TRY(status_of(cudaThreadExchangeStreamCaptureMode(&native), "setting the capture mode"));
    return static_cast<int>(native);
  }

  Result<int> resident_blocks(const void* kernel, int threads, size_t shared_bytes) override {
    int blocks = 0;
    const cudaError_t code =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
    RONDO_TRY(status_of(code, "asking how many blocks are resident"));
    return blocks;
  }
  Status load(const void* kernel) override {
    cudaFuncAttributes attributes{};
    return status_of(cudaFuncGetAttributes(&attributes, kernel), "loading a kernel");
  }
  Status launch(const Launch& launch) override {
    // The error is the call's own result. The thread's last one may be the application's.
    const cudaError_t code =
        cudaLaunchKernel(launch.kernel, dim3(static_cast<unsigned>(launch.blocks)),
                         dim3(static_cast<unsigned>(launch.threads)), launch.arguments,
                         launch.shared_bytes, native_stream(launch.stream));
    return status_of(code, "launching a kernel");
  }
};

}  // namespace

Result<std::unique_ptr<CudaCalls>> open_cuda() {
  auto calls = std::make_unique<RuntimeCalls>();
  Result<int> devices = calls->device_count();
  if (!devices.ok()) return Status(Code::kUnavailable, "no GPU: " + devices.status().message());
  if (*devices == 0) return Status(Code::kUnavailable, "no GPU: CUDA sees no device");
  return std::unique_ptr<CudaCalls>(std::move(calls));
}

}  // namespace rondo::transport::cuda_ipc
