// Device memory of callers: allocated here, and registered with all ranks of a communicator.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/base/guarded.hpp"
#include "comm/base/refuse.hpp"
#include "comm/communicator_impl.hpp"
#include "comm/device/registrations.hpp"

namespace rondo {

using comm::refuse;

namespace {

struct DeviceAllocation {
  size_t bytes;
  int device;
  std::shared_ptr<device::CudaCalls> cuda;
};

// Leaked on purpose: memory may be freed while static objects are being destroyed.
struct DeviceAllocations {
  std::mutex mutex;
  std::map<std::byte*, DeviceAllocation> all;
};
DeviceAllocations& allocations() {
  static auto* const the_allocations = new DeviceAllocations;
  return *the_allocations;
}

}  // namespace

Result<void*> device_alloc(size_t bytes, int device) {
  return base::guarded([&]() -> Result<void*> {
    auto backend = RONDO_TRY(device::open_backend());
    device::CudaCalls& cuda = *backend.cuda;
    int devices = RONDO_TRY(cuda.device_count());
    if (device < 0 || device >= devices) {
      return Status(Code::kUnavailable, fmt::format("device_alloc: there is no device {}: CUDA "
                                                    "sees {}",
                                                    device, devices));
    }
    const device::DeviceScope scope(cuda, device);
    RONDO_TRY(scope.status());
    const device::OutsideCapture outside(cuda);
    RONDO_TRY(outside.status());
    // Without the lock: it may wait for kernels, and they for a thread that waits for the lock.
    std::byte* memory = RONDO_TRY(cuda.allocate(std::max<size_t>(bytes, 1)));
    const std::lock_guard lock(allocations().mutex);
    allocations().all[memory] = {
        .bytes = std::max<size_t>(bytes, 1), .device = device, .cuda = std::move(backend.cuda)};
    return static_cast<void*>(memory);
  });
}

Status device_free(void* pointer) {
  if (pointer == nullptr) return {};
  return base::guarded([&]() -> Status {
    DeviceAllocation found;
    {
      const std::lock_guard lock(allocations().mutex);
      const auto it = allocations().all.find(static_cast<std::byte*>(pointer));
      if (it == allocations().all.end()) {
        return refuse(fmt::format("device_free: {} is not memory of device_alloc", pointer));
      }
      if (device::is_registered(it->first, it->second.bytes)) {
        return refuse(
            fmt::format("device_free: {} bytes at {} are still registered with a "
                        "communicator: call its unregister_device_memory() on every rank first",
                        it->second.bytes, pointer));
      }
      found = it->second;
      allocations().all.erase(it);
    }
    const device::DeviceScope scope(*found.cuda, found.device);
    RONDO_TRY(scope.status());
    const device::OutsideCapture outside(*found.cuda);
    RONDO_TRY(outside.status());
    return found.cuda->release(static_cast<std::byte*>(pointer));
  });
}

Status Communicator::register_device_memory(void* pointer, size_t bytes) {
  return impl_->guarded([&] { return impl_->register_memory(pointer, bytes); });
}

Status Communicator::unregister_device_memory(void* pointer) {
  return impl_->guarded([&] { return impl_->unregister_memory(pointer); });
}

}  // namespace rondo
