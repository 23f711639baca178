// The real calls of CUDA, with some functions of its runtime and the loader's replaced by the linker
// (--wrap): what happens to the error that a thread's earlier call has left, and to its context; and
// what of mapped memory is held when a call of the driver fails.
#include "transport/cuda_ipc/cuda_calls.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/harness/catch.hpp"

namespace {

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t launch_returns = cudaSuccess, counting_returns = cudaSuccess;
unsigned stream_flags = 0;
int stream_priority = 0, most_dynamic_bytes = 0;
unsigned long long graph_flags = 0;

// The driver: device 1's primary context, and the thread's stack of contexts.
char primary_context;
std::vector<void*> stack;
int held = 0;
bool started = false;

int start(unsigned) {
  started = true;
  return 0;
}
int get(int* device, int ordinal) {
  if (!started) return 3;  // CUDA_ERROR_NOT_INITIALIZED
  *device = 100 + ordinal;
  return 0;
}
int retain(void** context, int device) {
  if (device != 101) return 1;
  *context = &primary_context;
  ++held;
  return 0;
}
int push(void* context) {
  stack.push_back(context);
  return 0;
}
int pop(void** context) {
  if (stack.empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  *context = stack.back();
  stack.pop_back();
  return 0;
}

// The driver's mapped memory: one piece, whose bytes lie nowhere; what others have got of it.
constexpr CUdeviceptr kPiece = 0x200000, kReserved = 0x900000;
constexpr size_t kPieceBytes = 0x400000;
constexpr CUmemGenericAllocationHandle kOwn = 7, kImported = 8;
struct MappedPiece {
  unsigned types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC;
  std::string failing = {};  // the function that fails
  std::map<CUmemGenericAllocationHandle, int> held = {};
  int imported_from = -1;
  std::map<CUdeviceptr, size_t> reserved = {}, mapped = {};
  std::map<CUdeviceptr, CUmemAccessDesc> accessible = {};

  int answer(const char* function, bool right = true) const {
    return failing == function ? 999 : right ? 0 : 1;
  }
  bool holds_nothing() const {
    for (const auto& [handle, count] : held) {
      if (count != 0) return false;
    }
    return mapped.empty();
  }
} piece;

int retain_piece(CUmemGenericAllocationHandle* handle, void* memory) {
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  const int code = piece.answer("retain", at >= kPiece && at < kPiece + kPieceBytes);
  if (code == 0) ++piece.held[*handle = kOwn];
  return code;
}
int release_piece(CUmemGenericAllocationHandle handle) {
  --piece.held[handle];
  return 0;
}
int properties_of(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = 3;
  properties->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(piece.types);
  return piece.answer("properties", handle == kOwn);
}
int range_of(CUdeviceptr* base, size_t* bytes, CUdeviceptr) {
  *base = kPiece;
  *bytes = kPieceBytes;
  return piece.answer("range");
}
int to_descriptor(void* descriptor, CUmemGenericAllocationHandle handle,
                  CUmemAllocationHandleType type, unsigned long long) {
  const int code =
      piece.answer("export", handle == kOwn && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (code == 0) *static_cast<int*>(descriptor) = dup(STDERR_FILENO);
  return code;
}
int from_descriptor(CUmemGenericAllocationHandle* handle, void* descriptor,
                    CUmemAllocationHandleType type) {
  const int code = piece.answer("import", type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  piece.imported_from = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  if (code == 0) ++piece.held[*handle = kImported];
  return code;
}
int reserve(CUdeviceptr* start, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  piece.reserved[*start = kReserved] = bytes;
  return piece.answer("reserve");
}
int free_reserved(CUdeviceptr start, size_t bytes) {
  const auto found = piece.reserved.find(start);
  if (found == piece.reserved.end() || found->second != bytes) return 1;
  piece.reserved.erase(found);
  return 0;
}
int map_piece(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
              unsigned long long) {
  const int code = piece.answer("map", offset == 0 && handle == kImported);
  if (code == 0) piece.mapped[at] = bytes;
  return code;
}
int unmap_piece(CUdeviceptr at, size_t bytes) {
  const auto found = piece.mapped.find(at);
  if (found == piece.mapped.end() || found->second != bytes) return 1;
  piece.mapped.erase(found);
  return 0;
}
int give_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  const int code = piece.answer("access", count == 1 && piece.mapped[at] == bytes);
  if (code == 0) piece.accessible[at] = *access;
  return code;
}

}  // namespace

extern "C" {
cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  *count = 1;
  return counting_returns;
}
cudaError_t __wrap_cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
void* __wrap_dlopen(const char*, int) { return &primary_context; }
void* __wrap_dlsym(void*, const char* name) {
  const std::pair<const char*, void*> functions[] = {
      {"cuInit", reinterpret_cast<void*>(start)},
      {"cuDeviceGet", reinterpret_cast<void*>(get)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain)},
      {"cuCtxPushCurrent_v2", reinterpret_cast<void*>(push)},
      {"cuCtxPopCurrent_v2", reinterpret_cast<void*>(pop)},
      {"cuMemGetAddressRange_v2", reinterpret_cast<void*>(range_of)},
      {"cuMemRetainAllocationHandle", reinterpret_cast<void*>(retain_piece)},
      {"cuMemRelease", reinterpret_cast<void*>(release_piece)},
      {"cuMemGetAllocationPropertiesFromHandle", reinterpret_cast<void*>(properties_of)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(to_descriptor)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(from_descriptor)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(free_reserved)},
      {"cuMemMap", reinterpret_cast<void*>(map_piece)},
      {"cuMemUnmap", reinterpret_cast<void*>(unmap_piece)},
      {"cuMemSetAccess", reinterpret_cast<void*>(give_access)}};
  for (const auto& [known, function] : functions) {
    if (known == std::string(name)) return function;
  }
  return nullptr;
}
cudaError_t __wrap_cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  if (launch_returns != cudaSuccess) last_error = launch_returns;
  return launch_returns;
}
cudaError_t __wrap_cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t __wrap_cudaStreamCreateWithPriority(cudaStream_t*, unsigned flags, int priority) {
  stream_flags = flags;
  stream_priority = priority;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGraphInstantiateWithFlags(cudaGraphExec_t*, cudaGraph_t,
                                                 unsigned long long flags) {
  graph_flags = flags;
  return cudaSuccess;
}
cudaError_t __wrap_cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->sharedSizeBytes = 1024;
  return cudaSuccess;
}
cudaError_t __wrap_cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) most_dynamic_bytes = value;
  return cudaSuccess;
}
}

namespace rondo::transport::cuda_ipc {
namespace {

std::shared_ptr<CudaCalls> opened() {
  auto cuda = open_cuda();
  REQUIRE(cuda.ok());
  return std::move(*cuda);
}

TEST_CASE("Where CUDA finds no driver rondo says what to do") {
  counting_returns = cudaErrorInsufficientDriver;
  const Status none = open_cuda().status();
  counting_returns = cudaErrorNoDevice;
  const Status no_device = open_cuda().status();
  counting_returns = cudaSuccess;
  CHECK(none.code() == Code::kUnavailable);
  CHECK(none.message().find("no GPU: counting devices: ") == 0);
  CHECK(none.message().find("install NVIDIA's driver") != std::string::npos);
  CHECK(no_device.message().find("install") == std::string::npos);
}

TEST_CASE("A launch neither reports nor clears the application's error") {
  const auto cuda = opened();
  const Launch launch = {.kernel = nullptr,
                         .blocks = 1,
                         .threads = 1,
                         .shared_bytes = 0,
                         .arguments = nullptr,
                         .stream = nullptr};
  last_error = cudaErrorInvalidDevice;
  CHECK(cuda->launch(launch).ok());
  CHECK(last_error == cudaErrorInvalidDevice);

  launch_returns = cudaErrorInvalidConfiguration;
  const Status status = cuda->launch(launch);
  launch_returns = cudaSuccess;
  CHECK(status.code() == Code::kSystem);
  CHECK(status.message().find("launching a kernel") == 0);
  // What rondo's own call has left is not the application's.
  CHECK(last_error == cudaSuccess);
}

// cudaSetDevice() is not called, which would make a context on the device to come back to.
TEST_CASE("An urgent stream has the greatest priority, and graphs keep their kernels' priorities") {
  const auto cuda = opened();
  REQUIRE(cuda->create_urgent_stream().ok());
  CHECK((stream_priority == -5 && stream_flags == cudaStreamNonBlocking));
  REQUIRE(cuda->instantiate(nullptr).ok());
  CHECK((graph_flags & cudaGraphInstantiateFlagUseNodePriority) != 0);
}

TEST_CASE("A kernel may ask for what its own shared memory leaves") {
  const auto cuda = opened();
  REQUIRE(cuda->allow_shared(nullptr, 100'000).ok());
  CHECK(most_dynamic_bytes == 100'000 - 1024);
}

TEST_CASE("A device is entered and left by the driver's stack of contexts") {
  const auto cuda = opened();
  REQUIRE(cuda->enter_device(1).ok());
  REQUIRE(stack == std::vector<void*>{&primary_context});
  CHECK(held == 1);
  REQUIRE(cuda->enter_device(1).ok());
  CHECK(stack.size() == 2);
  CHECK(cuda->leave_device().ok());
  CHECK(cuda->leave_device().ok());
  CHECK((stack.empty() && held == 1));
  CHECK(cuda->leave_device().message() == "leaving a device: the driver says 201");
  CHECK_FALSE(cuda->enter_device(2).ok());
  CHECK(stack.empty());
}

std::byte* at(CUdeviceptr address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT: the driver's pointers are numbers
}

TEST_CASE("A piece of mapped memory is found and exported, and no handle is kept") {
  const auto cuda = opened();
  piece = {};
  const auto found = cuda->piece_at(at(kPiece + 5));
  REQUIRE(found.ok());
  CHECK(found->base == at(kPiece));
  CHECK(found->bytes == kPieceBytes);
  CHECK(found->device == 3);
  CHECK(cuda->piece_at(at(kPiece - 1)).value().bytes == 0);  // no memory of cuMemCreate()
  piece.types = CU_MEM_HANDLE_TYPE_FABRIC;
  CHECK(cuda->piece_at(at(kPiece)).value().device == -1);
  const auto descriptor = cuda->export_piece(at(kPiece));
  REQUIRE(descriptor.ok());
  CHECK((fcntl(*descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  close(*descriptor);
  for (const char* const failing : {"properties", "range", "export", "retain"}) {
    INFO(failing);
    piece.failing = failing;
    const bool finds = failing == std::string("export") || failing == std::string("retain");
    CHECK(cuda->piece_at(at(kPiece)).ok() == finds);
    CHECK(cuda->export_piece(at(kPiece)).ok() != finds);
    CHECK(piece.holds_nothing());
  }
}

TEST_CASE("A peer's piece is mapped for one GPU, or nothing of it is kept") {
  const auto cuda = opened();
  piece = {};
  const auto memory = cuda->reserve(2 * kPieceBytes);
  REQUIRE(memory.ok());
  std::byte* const place = *memory + kPieceBytes;
  const auto address = static_cast<CUdeviceptr>(kReserved + kPieceBytes);
  REQUIRE(cuda->map_piece(place, kPieceBytes, 42, 5).ok());
  CHECK(piece.imported_from == 42);
  CHECK(piece.held[kImported] == 0);  // the mapping keeps the memory
  CHECK(piece.mapped.at(address) == kPieceBytes);
  CHECK(piece.accessible.at(address).location.id == 5);
  CHECK(piece.accessible.at(address).location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  CHECK(piece.accessible.at(address).flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(cuda->unmap_piece(place, kPieceBytes).ok());
  CHECK(piece.holds_nothing());
  for (const char* const failing : {"import", "map", "access"}) {
    INFO(failing);
    piece.failing = failing;
    CHECK_FALSE(cuda->map_piece(place, kPieceBytes, 42, 5).ok());
    CHECK(piece.holds_nothing());
  }
  CHECK(cuda->free_reserved(*memory, 2 * kPieceBytes).ok());
  CHECK(piece.reserved.empty());
}

}  // namespace
}  // namespace rondo::transport::cuda_ipc
