#include "transport/cuda_ipc/mapped_memory.hpp"

#include <cuda.h>
#include <fcntl.h>

#include "transport/cuda_ipc/driver.hpp"

namespace rondo::transport::cuda_ipc::mapped_memory {
namespace {

struct MappingCalls {
  template <class Function>
  void find(const char* name, Function& into) {
    into = find_driver_function<Function>(name);
    are_there = are_there && into != nullptr;
  }
  MappingCalls() {
    find("cuMemRetainAllocationHandle", retain);
    find("cuMemRelease", release);
    find("cuMemGetAllocationPropertiesFromHandle", properties);
    find("cuMemGetAddressRange_v2", range);
    find("cuMemExportToShareableHandle", to_shareable);
    find("cuMemImportFromShareableHandle", from_shareable);
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", free);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", allow);
  }
  bool are_there = true;
  decltype(&cuMemRetainAllocationHandle) retain;
  decltype(&cuMemRelease) release;
  decltype(&cuMemGetAllocationPropertiesFromHandle) properties;
  decltype(&cuMemGetAddressRange_v2) range;
  decltype(&cuMemExportToShareableHandle) to_shareable;
  decltype(&cuMemImportFromShareableHandle) from_shareable;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) allow;
};

Result<const MappingCalls*> calls() {
  static const MappingCalls kCalls;
  if (kCalls.are_there) return &kCalls;
  return Status(Code::kUnavailable,
                "this driver has no calls for mapped memory: install one for CUDA 11.7 or later");
}

CUdeviceptr address(const std::byte* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

/// A handle, released at the end: mappings keep the memory.
class Handle {
 public:
  explicit Handle(const MappingCalls& calls) : calls_(calls) {}
  ~Handle() {
    if (is_held) (void)calls_.release(value);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  CUmemGenericAllocationHandle value{};
  bool is_held = false;

 private:
  const MappingCalls& calls_;
};

}  // namespace

Result<Allocation> piece_at(const std::byte* memory) {
  const MappingCalls& it = *RONDO_TRY(calls());
  Allocation found = {.base = nullptr, .bytes = 0, .device = -1};
  Handle handle(it);
  // An error: it is not memory of cuMemCreate().
  handle.is_held = it.retain(&handle.value, const_cast<std::byte*>(memory)) == CUDA_SUCCESS;
  if (!handle.is_held) return found;
  CUmemAllocationProp properties{};
  RONDO_TRY(driver_status(it.properties(&properties, handle.value), "asking about memory"));
  // Of this mapping; a pointer's attributes RANGE_START_ADDR and RANGE_SIZE are the reservation's.
  CUdeviceptr base = 0;
  RONDO_TRY(driver_status(it.range(&base, &found.bytes, address(memory)), "finding a mapping"));
  found.base = reinterpret_cast<std::byte*>(base);  // NOLINT: the driver's pointers are numbers
  const bool exports = (static_cast<unsigned>(properties.requestedHandleTypes) &
                        static_cast<unsigned>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) != 0;
  if (exports && properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    found.device = properties.location.id;
  }
  return found;
}

Result<int> export_piece(const std::byte* memory) {
  const MappingCalls& it = *RONDO_TRY(calls());
  Handle handle(it);
  RONDO_TRY(driver_status(it.retain(&handle.value, const_cast<std::byte*>(memory)),
                          "finding the handle of mapped memory"));
  handle.is_held = true;
  int descriptor = -1;
  RONDO_TRY(driver_status(
      it.to_shareable(&descriptor, handle.value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "exporting mapped memory"));
  (void)fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return descriptor;
}

Result<std::byte*> reserve(size_t bytes) {
  const MappingCalls& it = *RONDO_TRY(calls());
  CUdeviceptr start = 0;
  RONDO_TRY(driver_status(it.reserve(&start, bytes, 0, 0, 0), "reserving addresses"));
  return reinterpret_cast<std::byte*>(start);  // NOLINT: the driver's pointers are numbers
}

Status free_reserved(std::byte* memory, size_t bytes) {
  const MappingCalls& it = *RONDO_TRY(calls());
  return driver_status(it.free(address(memory), bytes), "freeing addresses");
}

Status map_piece(std::byte* at, size_t bytes, int descriptor, int device) {
  const MappingCalls& it = *RONDO_TRY(calls());
  Handle handle(it);
  // The descriptor itself travels as a pointer.
  void* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));  // NOLINT
  RONDO_TRY(driver_status(
      it.from_shareable(&handle.value, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "importing a peer's mapped memory"));
  handle.is_held = true;
  RONDO_TRY(
      driver_status(it.map(address(at), bytes, 0, handle.value, 0), "mapping a peer's memory"));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const Status allowed =
      driver_status(it.allow(address(at), bytes, &access, 1), "getting access to a peer's memory");
  if (!allowed.ok()) (void)it.unmap(address(at), bytes);
  return allowed;
}

Status unmap_piece(std::byte* at, size_t bytes) {
  const MappingCalls& it = *RONDO_TRY(calls());
  return driver_status(it.unmap(address(at), bytes), "unmapping a peer's memory");
}

}  // namespace rondo::transport::cuda_ipc::mapped_memory
