// The calls of CUDA that rondo uses, as an interface: everything that decides something on top of
// it can then be tested, errors included, on a machine without a GPU. Each is one function of CUDA
// (or NVML), without policy; an error holds CUDA's sentence and the arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "rondo/status.hpp"

namespace rondo::transport::cuda_ipc {

struct DeviceInfo {
  std::string name;
  std::array<std::byte, 16>
      uuid;  // the same for all processes, whatever number the device has there
  std::array<char, 32> pci_bus{};  // likewise; a string
  int multiprocessors = 0;
  int major = 0, minor = 0;  // compute capability
  size_t memory_bytes = 0;
  size_t most_shared_bytes = 0;  // of a block, for kernels that are allowed so much
  bool computes = true;          // false: the device's mode forbids contexts
};

/// cudaStream_t and cudaEvent_t; a null stream is the default one.
using Stream = void*;
using Event = void*;
/// cudaGraph_t and cudaGraphExec_t.
using Graph = void*;
using ExecutableGraph = void*;

/// cudaIpcMemHandle_t: device memory in words that another process can use.
struct IpcHandle {
  std::array<std::byte, 64> bytes;
};

/// Device memory as it was allocated.
struct Allocation {
  std::byte* base;
  size_t bytes;
  int device;  // -1: it is not device memory, and the rest says nothing
};

struct Launch {
  const void* kernel;  // a __global__ function
  int blocks, threads;
  size_t shared_bytes;
  void** arguments;
  Stream stream;
  int rows = 1, planes = 1;  // of so many blocks each: a grid of three dimensions
};

/// How what others than GPUs write into a device's memory (a network card, by GPUDirect RDMA) reaches
/// its kernels.
enum class RemoteWrites : uint8_t {
  kImpossible,
  kFlushed,  // after flush_remote_writes()
  kOrdered,  // a kernel that sees what was written later sees it
};

/// Thread-safe where CUDA is. Everything that follows set_device() is about that device, for the
/// calling thread. No call blocks but those that say so; allocating, freeing and importing may wait
/// for kernels that run, so they happen when communicators are made and unmade, never between.
class CudaCalls {
 public:
  virtual ~CudaCalls() = default;

  virtual Result<int> device_count() = 0;
  virtual Result<DeviceInfo> device_info(int device) = 0;
  virtual Result<int> current_device() = 0;
  virtual Status set_device(int device) = 0;
  /// As set_device(), until leave_device() by the same thread; pairs nest. set_device() is no way
  /// back: it makes a context on that device, which takes half a gigabyte there, although the thread
  /// may have no use for it.
  virtual Status enter_device(int device) = 0;
  virtual Status leave_device() = 0;
  /// Whether kernels on `device` can touch memory of `peer`; and allows it. Having been allowed
  /// before is no error.
  virtual Result<bool> can_access_peer(int device, int peer) = 0;
  virtual Status enable_peer_access(int peer) = 0;
  /// Whether access between peers covers this memory: not if it comes from a pool (cudaMallocAsync)
  /// or was mapped by cuMemMap, to which it is granted piece by piece (piece_at()).
  virtual Result<bool> is_for_peers(const std::byte* memory) = 0;
  virtual Result<Allocation> allocation_of(const std::byte* memory) = 0;
  /// Whether NVLink joins two GPUs, by DeviceInfo::pci_bus, as NVML says, which sees those that are
  /// hidden from CUDA, too; false where it is missing.
  virtual bool has_nvlink(const char* bus, const char* peer_bus) = 0;

  /// Device memory; and host memory that every device reaches at this same address. Neither is
  /// cleared.
  virtual Result<std::byte*> allocate(size_t bytes) = 0;
  virtual Status release(std::byte* memory) = 0;
  virtual Result<std::byte*> allocate_mapped(size_t bytes) = 0;
  virtual Status release_mapped(std::byte* memory) = 0;
  /// Makes host memory that is there already, whole pages of it, such memory too; and its end.
  virtual Status map_host(std::byte* memory, size_t bytes) = 0;
  virtual Status unmap_host(std::byte* memory) = 0;

  /// Memory of allocate() for another process; that memory in this one, and its end.
  virtual Result<IpcHandle> export_memory(std::byte* memory) = 0;
  virtual Result<std::byte*> import_memory(const IpcHandle& handle) = 0;
  virtual Status close_memory(std::byte* memory) = 0;

  /// Memory of cuMemCreate() for another process, which is_for_peers() denies: it is mapped in pieces,
  /// each a physical allocation. The one that holds `memory`; empty: it is no such memory; device -1:
  /// it was created without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, or not on a device.
  virtual Result<Allocation> piece_at(const std::byte* memory) = 0;
  /// A file descriptor for that piece, to be closed by the caller.
  virtual Result<int> export_piece(const std::byte* memory) = 0;
  /// Addresses, with nothing there; and their end, when nothing is mapped there any more.
  virtual Result<std::byte*> reserve(size_t bytes) = 0;
  virtual Status free_reserved(std::byte* memory, size_t bytes) = 0;
  /// Maps the piece that a descriptor stands for at reserved addresses, for kernels on `device`; and
  /// its end. The descriptor may be closed then, and the piece lives as long as it is mapped anywhere.
  virtual Status map_piece(std::byte* at, size_t bytes, int descriptor, int device) = 0;
  virtual Status unmap_piece(std::byte* at, size_t bytes) = 0;

  virtual Result<RemoteWrites> remote_writes(int device) = 0;
  /// From then on kernels of the current device see those that have arrived (blocks for them).
  virtual Status flush_remote_writes() = 0;

  virtual Status copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) = 0;
  virtual Status clear(std::byte* memory, size_t bytes, Stream stream) = 0;

  virtual Result<Stream> create_stream() = 0;  // one that does not wait for the default stream
  /// One whose blocks the device starts before those of all other streams that wait for room. Kernels
  /// that are captured on it have that in their graph, too.
  virtual Result<Stream> create_urgent_stream() = 0;
  virtual Status destroy_stream(Stream stream) = 0;
  /// A number that no other stream of this program has, also after this one is destroyed; a handle
  /// may be given out again. Refused of a stream that is captured, whose capture then fails.
  virtual Result<uint64_t> identity_of(Stream stream) = 0;
  /// Whether everything on it is done; waits for it (blocks).
  virtual Result<bool> is_done(Stream stream) = 0;
  virtual Status synchronize(Stream stream) = 0;
  /// Waits for everything that this process has on the current device (blocks). kUnavailable: a
  /// stream is being captured, so nothing was waited for.
  virtual Status synchronize_device() = 0;

  virtual Result<Event> create_event() = 0;  // for order: one that takes no time down
  /// One that does; milliseconds between two of them that have happened, on streams of one device.
  virtual Result<Event> create_timed_event() = 0;
  virtual Result<float> elapsed_ms(Event from, Event to) = 0;
  virtual Status destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;  // the stream waits, not the caller
  virtual Result<bool> has_happened(Event event) = 0;   // true if it was never recorded
  /// The number of the graph that the stream is being captured into, or 0.
  virtual Result<uint64_t> capture_of(Stream stream) = 0;
  /// What this thread may call while some stream is captured: sets `mode`, returns what it was.
  /// kRelaxed allows what touches no stream that is captured.
  virtual Result<int> exchange_capture_mode(int mode) = 0;
  static constexpr int kThreadLocal = 1;  // cudaStreamCaptureModeThreadLocal
  static constexpr int kRelaxed = 2;      // cudaStreamCaptureModeRelaxed

  /// From here on what the stream gets goes into a graph instead, and a stream that waits for an
  /// event of it joins. Meanwhile the mode forbids this thread, or all, most calls that may wait.
  virtual Status begin_capture(Stream stream, int mode) = 0;
  /// Ends the capture in any case, by the same thread. An error: something that was captured was not
  /// possible, or a stream that joined has work for which `stream` does not wait.
  virtual Result<Graph> end_capture(Stream stream) = 0;
  virtual Status destroy_graph(Graph graph) = 0;
  /// May allocate memory on the device (blocks).
  virtual Result<ExecutableGraph> instantiate(Graph graph) = 0;
  /// Has the device's part of it made: the first launch would do it, and may then wait for others.
  virtual Status upload(ExecutableGraph graph, Stream stream) = 0;
  virtual Status destroy_executable(ExecutableGraph graph) = 0;
  virtual Status launch_graph(ExecutableGraph graph, Stream stream) = 0;

  /// How many blocks of this shape one multiprocessor of the device holds at a time.
  virtual Result<int> resident_blocks(const void* kernel, int threads, size_t shared_bytes) = 0;
  /// Has the kernel's code loaded: the first launch would do it, and may then wait for others.
  virtual Status load(const void* kernel) = 0;
  /// Lets launches of the kernel on the current device ask for up to so many bytes of shared memory,
  /// less what its code has by itself, and no more: the last call counts. At first they may ask for
  /// 48 KiB.
  virtual Status allow_shared(const void* kernel, size_t bytes) = 0;
  /// Neither reports nor clears an error that an earlier call has left in this thread: it is the
  /// application's.
  virtual Status launch(const Launch& launch) = 0;
};

/// This machine's. kUnavailable, with a sentence: rondo was built without CUDA, or there is no
/// driver, or no device.
Result<std::unique_ptr<CudaCalls>> open_cuda();

}  // namespace rondo::transport::cuda_ipc
