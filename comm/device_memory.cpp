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

Status Communicator::Impl::register_device_memory(void* pointer, size_t bytes) {
  RONDO_TRY(check_process());
  if (!device_) {
    return refuse(
        "register_device_memory: this communicator is not on a device; rondo::register_memory() "
        "makes host memory library memory, for every communicator");
  }
  if (group_) return refuse("register_device_memory inside a group: call group_end first");
  if (device_->hosts().hosts() > 1) {
    return {
        Code::kUnavailable,
        "register_device_memory: the ranks are on several hosts, so operations go through slots"};
  }
  if (!device_->can_register()) {
    return {Code::kUnavailable,
            "register_device_memory: the ranks' GPUs have no access to each other: operations go "
            "through slots in host memory"};
  }
  device::Registrations& registrations = device_->registrations();
  // Every rank gets as far as its peers do: what one has to say, the others wait for.
  const auto offers =
      RONDO_TRY(gather_on_host(registrations.offer(pointer, bytes), board::CallKind::kRegister));
  RONDO_TRY(device::first_error(offers));
  const uint32_t rounds = registrations.piece_rounds(offers);
  Status own = registrations.map(offers), all;
  for (uint32_t round = 0; all.ok() && round <= rounds; ++round) {
    if (own.ok()) own = registrations.send_pieces(round);
    const auto outcomes =
        gather_on_host(device::RegistrationOutcome::of(own), board::CallKind::kRegister);
    all = outcomes.ok() ? device::first_error(*outcomes) : outcomes.status();
    // What the others have sent is here by now. In the last round nobody sends.
    if (round < rounds) own = registrations.map_pieces(round, all.ok());
  }
  registrations.settle(all.ok());
  RONDO_TRY(all);
  if (!device_plans_->limits().available.references) {
    // From here on, on every rank alike, operations may be direct.
    comm::PlanLimits limits = device_plans_->limits();
    limits.available.references = true;
    last_ = {};
    device_plans_ = std::make_unique<comm::Plans>(limits);
  }
  return {};
}

Status Communicator::Impl::unregister_device_memory(void* pointer) {
  RONDO_TRY(check_process());
  if (!device_) return refuse("unregister_device_memory: this communicator is not on a device");
  if (group_) return refuse("unregister_device_memory inside a group: call group_end first");
  return device_->registrations().remove(pointer);
}

Status Communicator::register_device_memory(void* pointer, size_t bytes) {
  return impl_->guarded([&] { return impl_->register_device_memory(pointer, bytes); });
}

Status Communicator::unregister_device_memory(void* pointer) {
  return impl_->guarded([&] { return impl_->unregister_device_memory(pointer); });
}

}  // namespace rondo
