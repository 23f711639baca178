// CUDA's runtime itself. Linked statically, it opens the driver at the first call: without a driver
// rondo starts as elsewhere, and open_cuda() returns the error.
#include "transport/cuda_ipc/cuda_calls.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "transport/cuda_ipc/driver.hpp"
#include "transport/cuda_ipc/mapped_memory.hpp"
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

// What only the driver knows: 0 if it could be asked, as in its interface.
int ask_driver(void* answer, int attribute, const std::byte* memory) {
  using Ask = int (*)(void* answer, int attribute, unsigned long long pointer);
  static const Ask kAsk = find_driver_function<Ask>("cuPointerGetAttribute");
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

// What only the driver can do with a thread's stack of contexts. The runtime works on the current
// context, whoever has made it so (cuda_runtime_api.h, "Interactions with the CUDA Driver API").
struct ContextCalls {
  template <class... Arguments>
  using Call = int (*)(Arguments...);
  Call<unsigned> start = find_driver_function<Call<unsigned>>("cuInit");
  Call<int*, int> get = find_driver_function<Call<int*, int>>("cuDeviceGet");
  Call<void**, int> retain = find_driver_function<Call<void**, int>>("cuDevicePrimaryCtxRetain");
  Call<void*> push = find_driver_function<Call<void*>>("cuCtxPushCurrent_v2");
  Call<void**> pop = find_driver_function<Call<void**>>("cuCtxPopCurrent_v2");
  bool are_there =
      start != nullptr && get != nullptr && retain != nullptr && push != nullptr && pop != nullptr;
};
const ContextCalls& contexts() {
  static const ContextCalls kCalls;
  return kCalls;
}
/// The context that the runtime uses for that device. Held until the process ends: the last one to
/// let go of a context would destroy it, and nothing says that the runtime holds it as well.
Result<void*> context_of(int device) {
  static std::mutex mutex;
  static auto* const known =
      new std::map<int, void*>;  // leaked: the end of a program comes here, too
  if (!contexts().are_there) {
    return Status(Code::kSystem, "the driver has no calls for contexts");
  }
  const std::lock_guard lock(mutex);
  if (const auto found = known->find(device); found != known->end()) return found->second;
  int number = 0;
  void* context = nullptr;
  // Nothing says that the runtime has started the driver by now. Starting it again does nothing.
  RONDO_TRY(driver_status(contexts().start(0), "starting the driver"));
  RONDO_TRY(driver_status(contexts().get(&number, device), "finding a device"));
  RONDO_TRY(driver_status(contexts().retain(&context, number), "opening a device"));
  return known->emplace(device, context).first->second;
}

class RuntimeCalls final : public CudaCalls {
 public:
  Result<int> device_count() override {
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    const Status counted = status_of(code, "counting devices");
    if (code == cudaErrorInsufficientDriver) {  // also where there is none
      return Status(counted.code(), counted.message() +
                                        ": to use GPUs install NVIDIA's driver, or a newer one; "
                                        "to do without leave out the device (--device cuda)");
    }
    RONDO_TRY(counted);
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
                       .most_shared_bytes = properties.sharedMemPerBlockOptin,
                       .computes = mode != cudaComputeModeProhibited};
    const cudaError_t found =
        cudaDeviceGetPCIBusId(info.pci_bus.data(), static_cast<int>(info.pci_bus.size()), device);
    RONDO_TRY(status_of(found, "asking for a device's PCI bus"));
    static_assert(sizeof(properties.uuid) == sizeof(info.uuid));
    std::memcpy(info.uuid.data(), &properties.uuid, info.uuid.size());
    return info;
  }

  Result<RemoteWrites> remote_writes(int device) override {
    int supported = 0, ordering = 0, flushes = 0;
    const struct {
      int* value;
      cudaDeviceAttr attribute;
    } wanted[] = {{&supported, cudaDevAttrGPUDirectRDMASupported},
                  {&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering},
                  {&flushes, cudaDevAttrGPUDirectRDMAFlushWritesOptions}};
    for (const auto& [value, attribute] : wanted) {
      RONDO_TRY(status_of(cudaDeviceGetAttribute(value, attribute, device),
                          "asking how remote writes reach a device"));
    }
    if (supported == 0) return RemoteWrites::kImpossible;
    if (ordering >= cudaGPUDirectRDMAWritesOrderingOwner) return RemoteWrites::kOrdered;
    return (flushes & cudaFlushGPUDirectRDMAWritesOptionHost) != 0 ? RemoteWrites::kFlushed
                                                                   : RemoteWrites::kImpossible;
  }
  Status flush_remote_writes() override {
    return status_of(
        cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                           cudaFlushGPUDirectRDMAWritesToOwner),
        "flushing remote writes");
  }

  Result<int> current_device() override {
    int device = 0;
    RONDO_TRY(status_of(cudaGetDevice(&device), "asking for the current device"));
    return device;
  }
  Status set_device(int device) override {
    return status_of(cudaSetDevice(device), "choosing a device");
  }
  Status enter_device(int device) override {
    void* const context = RONDO_TRY(context_of(device));
    return driver_status(contexts().push(context), "choosing a device");
  }
  Status leave_device() override {
    void* context = nullptr;
    return driver_status(contexts().pop(&context), "leaving a device");
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

  Result<Allocation> piece_at(const std::byte* memory) override {
    return mapped_memory::piece_at(memory);
  }
  Result<int> export_piece(const std::byte* memory) override {
    return mapped_memory::export_piece(memory);
  }
  Result<std::byte*> reserve(size_t bytes) override { return mapped_memory::reserve(bytes); }
  Status free_reserved(std::byte* memory, size_t bytes) override {
    return mapped_memory::free_reserved(memory, bytes);
  }
  Status map_piece(std::byte* at, size_t bytes, int descriptor, int device) override {
    return mapped_memory::map_piece(at, bytes, descriptor, device);
  }
  Status unmap_piece(std::byte* at, size_t bytes) override {
    return mapped_memory::unmap_piece(at, bytes);
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
  Result<Stream> create_urgent_stream() override {
    int least = 0, greatest = 0;
    RONDO_TRY(status_of(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                        "asking for the priorities of streams"));
    cudaStream_t stream = nullptr;
    RONDO_TRY(status_of(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                        "creating a stream of priority"));
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
    const cudaError_t code = cudaDeviceSynchronize();
    Status status = status_of(code, "waiting for a device");
    const bool captures =
        code == cudaErrorStreamCaptureUnsupported || code == cudaErrorStreamCaptureInvalidated;
    return captures ? Status(Code::kUnavailable, status.message()) : status;
  }

  Result<Event> create_event() override {
    cudaEvent_t event = nullptr;
    const cudaError_t code = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    RONDO_TRY(status_of(code, "creating an event"));
    return Event{event};
  }
  Result<Event> create_timed_event() override {
    cudaEvent_t event = nullptr;
    RONDO_TRY(status_of(cudaEventCreate(&event), "creating an event that takes time down"));
    return Event{event};
  }
  Result<float> elapsed_ms(Event from, Event to) override {
    float ms = 0;
    const cudaError_t code = cudaEventElapsedTime(&ms, native_event(from), native_event(to));
    RONDO_TRY(status_of(code, "asking for the time between two events"));
    return ms;
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

  Status begin_capture(Stream stream, int mode) override {
    return status_of(
        cudaStreamBeginCapture(native_stream(stream), static_cast<cudaStreamCaptureMode>(mode)),
        "beginning the capture of a stream");
  }
  Result<Graph> end_capture(Stream stream) override {
    cudaGraph_t graph = nullptr;
    RONDO_TRY(status_of(cudaStreamEndCapture(native_stream(stream), &graph),
                        "ending the capture of a stream"));
    return Graph{graph};
  }
  Status destroy_graph(Graph graph) override {
    return status_of(cudaGraphDestroy(static_cast<cudaGraph_t>(graph)), "destroying a graph");
  }
  Result<ExecutableGraph> instantiate(Graph graph) override {
    cudaGraphExec_t executable = nullptr;
    // Else every kernel would have the priority of the stream on which the graph is launched.
    RONDO_TRY(status_of(cudaGraphInstantiateWithFlags(&executable, static_cast<cudaGraph_t>(graph),
                                                      cudaGraphInstantiateFlagUseNodePriority),
                        "instantiating a graph"));
    return ExecutableGraph{executable};
  }
  Status upload(ExecutableGraph graph, Stream stream) override {
    return status_of(cudaGraphUpload(static_cast<cudaGraphExec_t>(graph), native_stream(stream)),
                     "uploading a graph");
  }
  Status destroy_executable(ExecutableGraph graph) override {
    return status_of(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)),
                     "destroying an instance of a graph");
  }
  Status launch_graph(ExecutableGraph graph, Stream stream) override {
    return status_of(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native_stream(stream)),
                     "launching a graph");
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
  Status allow_shared(const void* kernel, size_t bytes) override {
    cudaFuncAttributes attributes{};
    RONDO_TRY(status_of(cudaFuncGetAttributes(&attributes, kernel), "asking for shared memory"));
    const size_t left = bytes - std::min(bytes, attributes.sharedSizeBytes);
    return status_of(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(left)),
                     "asking for shared memory");
  }
  Status launch(const Launch& launch) override {
    const dim3 grid(static_cast<unsigned>(launch.blocks), static_cast<unsigned>(launch.rows),
                    static_cast<unsigned>(launch.planes));
    // The error is the call's own result. The thread's last one may be the application's.
    const cudaError_t code =
        cudaLaunchKernel(launch.kernel, grid, dim3(static_cast<unsigned>(launch.threads)),
                         launch.arguments, launch.shared_bytes, native_stream(launch.stream));
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
