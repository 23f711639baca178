// Memory of the library's own, and buffers that the caller registers.
#include <unistd.h>

#include <map>

#include "nccl/comm.hpp"
#include "nccl/driver.hpp"
#include "nccl/group.hpp"

namespace rondo::nccl {
namespace {

/// A registered buffer: a handle of ncclCommRegister, and a window.
struct RegisteredBuffer {
  ncclComm_t comm;
  void* buffer;
  bool counts;              // one of those in `moved`
  bool with_ranks = false;  // of a device: with the other ranks, too
};

std::mutex mutex;
// Both guarded by `mutex` and never destroyed.
auto& registrations = *new std::map<void*, std::unique_ptr<RegisteredBuffer>>;
auto& moved =
    *new std::map<void*, int>;  // buffers whose pages became library memory: how often registered

/// Whether a buffer is whole pages, so that nothing else is moved with it.
bool is_whole_pages(const void* buffer, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes != 0 && reinterpret_cast<uintptr_t>(buffer) % page == 0 && bytes % page == 0;
}

/// Makes the buffer library memory if that touches nothing else. What cannot be moved is staged, as
/// it was before. REQUIRES: `mutex` is held.
bool move(void* buffer, size_t bytes) {
  if (const auto again = moved.find(buffer); again != moved.end()) {
    ++again->second;
    return true;
  }
  if (!is_whole_pages(buffer, bytes) || is_library_memory(buffer, bytes)) return false;
  if (const Status status = register_memory(buffer, bytes); !status.ok()) {
    log(LogLevel::kInfo, "ncclCommRegister: a buffer stays plain memory: " + status.message());
    return false;
  }
  moved.emplace(buffer, 1);
  return true;
}

/// Whether the ranks now access each other's buffers in place. What they cannot goes through slots.
/// In a group this thread may be several ranks, none of which must wait for another.
Result<bool> register_with_ranks(const char* call, ncclComm& comm, void* buffer, size_t bytes) {
  if (comm.device < 0 || in_group()) return false;
  const Status status =
      comm.use(call, [&](Communicator& c) { return c.register_device_memory(buffer, bytes); });
  if (status.ok()) return true;
  RONDO_TRY(comm.failure());
  log(LogLevel::kInfo, std::string(call) + ": " + status.message());
  return false;
}

/// `collective`: every rank makes this call.
Result<void*> add(const char* call, ncclComm_t handle, void* buffer, size_t bytes,
                  bool collective) {
  const Comm comm = RONDO_TRY(find_ready(handle, call));
  RONDO_TRY(check_pointer(buffer, call, "the buffer"));
  const bool with_ranks = collective && RONDO_TRY(register_with_ranks(call, *comm, buffer, bytes));
  const std::lock_guard lock(mutex);
  auto made =
      std::make_unique<RegisteredBuffer>(RegisteredBuffer{handle, buffer, false, with_ranks});
  made->counts = comm->device < 0 && move(buffer, bytes);
  void* const key = made.get();
  registrations.emplace(key, std::move(made));
  return key;
}

/// REQUIRES: `mutex` is held.
Result<RegisteredBuffer*> known(const char* call, ncclComm_t comm, void* handle) {
  const auto found = registrations.find(handle);
  if (found != registrations.end() && found->second->comm == comm) return found->second.get();
  return refuse(std::string(call) + ": there is no such registration with this communicator");
}

/// The communicator may be gone, or finalized, as PyTorch's are; its registrations are not.
Status remove(const char* call, ncclComm_t comm, void* handle) {
  RegisteredBuffer it;
  {
    const std::lock_guard lock(mutex);
    it = *RONDO_TRY(known(call, comm, handle));
    registrations.erase(handle);
  }
  if (it.with_ranks) {
    if (const auto there = find(comm, call); there.ok()) {
      return (*there)->use_if_there(
          [&](Communicator& c) { return c.unregister_device_memory(it.buffer); });
    }
    return {};
  }
  const std::lock_guard lock(mutex);
  if (!it.counts || --moved[it.buffer] > 0) return {};
  moved.erase(it.buffer);
  return unregister_memory(it.buffer);
}

}  // namespace
}  // namespace rondo::nccl

using namespace rondo::nccl;  // NOLINT: the functions below are NCCL's
using rondo::Status;

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  return guarded([&]() -> Status {
    RONDO_TRY(check_pointer(pointer, "ncclMemAlloc", "the place of the pointer"));
    *pointer = nullptr;
    if (!RONDO_TRY(host_memory())) {
      *pointer = RONDO_TRY(driver::allocate(bytes));
      return {};
    }
    *pointer = rondo::alloc(bytes);
    if (*pointer != nullptr) return {};
    return {rondo::Code::kResourceExhausted,
            "ncclMemAlloc: " + std::to_string(bytes) +
                " bytes of library memory are not left (RONDO_ARENA_BYTES)"};
  });
}

ncclResult_t ncclMemFree(void* pointer) {
  if (pointer == nullptr) return ncclSuccess;
  return guarded([&]() -> Status {
    if (!RONDO_TRY(host_memory())) return driver::free(pointer);
    if (!rondo::is_library_memory(pointer, 1))
      return refuse("ncclMemFree: not a pointer of ncclMemAlloc");
    rondo::dealloc(pointer);
    return {};
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t size, void** handle) {
  return guarded([&]() -> Status {
    RONDO_TRY(check_pointer(handle, "ncclCommRegister", "the place of the handle"));
    *handle = RONDO_TRY(add("ncclCommRegister", comm, buffer, size, false));
    return {};
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (handle == nullptr) return ncclSuccess;
  return guarded([&] { return remove("ncclCommDeregister", comm, handle); });
}

// A window is a registration: there is no access from one side, so its flags change nothing.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t size,
                                    ncclWindow_t* window, int /*flags*/) {
  return guarded([&]() -> Status {
    RONDO_TRY(check_pointer(window, "ncclCommWindowRegister", "the place of the window"));
    *window = static_cast<ncclWindow_t>(
        RONDO_TRY(add("ncclCommWindowRegister", comm, buffer, size, true)));
    return {};
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (window == nullptr) return ncclSuccess;
  return guarded([&] { return remove("ncclCommWindowDeregister", comm, window); });
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer) {
  return guarded([&]() -> Status {
    RONDO_TRY(check_pointer(pointer, "ncclWinGetUserPtr", "the place of the pointer"));
    const std::lock_guard lock(rondo::nccl::mutex);
    *pointer = RONDO_TRY(known("ncclWinGetUserPtr", comm, window))->buffer;
    return {};
  });
}

#pragma GCC visibility push(default)
extern "C" {
[[gnu::alias("ncclMemAlloc")]] decltype(ncclMemAlloc) pncclMemAlloc;
[[gnu::alias("ncclMemFree")]] decltype(ncclMemFree) pncclMemFree;
[[gnu::alias("ncclCommRegister")]] decltype(ncclCommRegister) pncclCommRegister;
[[gnu::alias("ncclCommDeregister")]] decltype(ncclCommDeregister) pncclCommDeregister;
[[gnu::alias("ncclCommWindowRegister")]] decltype(ncclCommWindowRegister) pncclCommWindowRegister;
[[gnu::alias(
    "ncclCommWindowDeregister")]] decltype(ncclCommWindowDeregister) pncclCommWindowDeregister;
[[gnu::alias("ncclWinGetUserPtr")]] decltype(ncclWinGetUserPtr) pncclWinGetUserPtr;
}
#pragma GCC visibility pop
