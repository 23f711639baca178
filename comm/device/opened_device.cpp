#include "comm/device/opened_device.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/base/refuse.hpp"
#include "comm/device/device_group.hpp"
#include "comm/device/residency.hpp"
#include "transport/cuda_ipc/reach.hpp"

namespace rondo::device {
namespace {

using transport::cuda_ipc::DevicePlace;

// Equal for the threads of a process, and different between processes, wherever they come from.
uint64_t this_process() {
  static const uint64_t kDrawn = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }();
  return kDrawn ^ static_cast<uint64_t>(getpid()) * 0x9e3779b97f4a7c15u;  // a fork's differs
}

Result<DeviceFacts> facts_of(const GpuBackend& backend, int device) {
  CudaCalls& cuda = *backend.cuda;
  const auto info = RONDO_TRY(cuda.device_info(device));
  if (!info.computes) {
    return Status(Code::kUnavailable,
                  fmt::format("GPU {} is in a mode that forbids computing", device));
  }
  RONDO_TRY(cuda.load(backend.kernel));
  RONDO_TRY(cuda.load(backend.ll_kernel));
  const int at_once =
      std::min(RONDO_TRY(cuda.resident_blocks(backend.kernel, backend.threads, 0)),
               RONDO_TRY(cuda.resident_blocks(backend.ll_kernel, backend.ll_threads, 0)));
  DeviceFacts facts{};  // padding, too: it travels
  facts.place = {.process = backend.process != 0 ? backend.process : this_process(),
                 .device = info.uuid,
                 .number = device,
                 .multiprocessors = info.multiprocessors,
                 .elsewhere = claimed(info.uuid),
                 .pci_bus = info.pci_bus};
  facts.blocks_at_once = at_once;
  return facts;
}

}  // namespace

Result<OpenedDevice> open_device(int device, int ranks) {
  if (ranks > static_cast<int>(engine::kMaxDeviceRanks)) {
    return Status(Code::kUnavailable, fmt::format("{} ranks on GPUs; at most {} are possible",
                                                  ranks, engine::kMaxDeviceRanks));
  }
  GpuBackend backend = RONDO_TRY(open_backend());
  const int devices = RONDO_TRY(backend.cuda->device_count());
  if (device >= devices) {
    return comm::refuse(
        fmt::format("Config::device is {}, but CUDA sees {} devices: 0 to {} are "
                    "possible",
                    device, devices, devices - 1));
  }
  const DeviceScope scope(*backend.cuda, device);
  RONDO_TRY(scope.status());
  const OutsideCapture outside(*backend.cuda);
  RONDO_TRY(outside.status());
  const DeviceFacts facts = RONDO_TRY(facts_of(backend, device));
  return OpenedDevice{.device = device, .backend = std::move(backend), .facts = facts};
}

Result<DeviceReach> find_reach(const OpenedDevice& own, std::span<const DeviceFacts> all,
                               const base::HostMap& hosts, int rank,
                               const std::function<Result<bool>()>& wire_reaches_gpus) {
  CudaCalls& cuda = *own.backend.cuda;
  const DeviceScope scope(cuda, own.device);
  RONDO_TRY(scope.status());
  const OutsideCapture outside(cuda);
  RONDO_TRY(outside.status());
  std::vector<DevicePlace> near;
  for (const int peer : hosts.ranks_on(hosts.host_of(rank))) {
    near.push_back(all[static_cast<size_t>(peer)].place);
  }
  DeviceReach reach{
      .slowest = RONDO_TRY(transport::cuda_ipc::slowest_reach(cuda, own.facts.place, near)),
      .gpu_direct = own.backend.gpu_direct.value_or(false)};
  // Only where it is asked for: nobody has run it.
  const char* const chosen = std::getenv("RONDO_GPUDIRECT");
  const bool asks = chosen != nullptr && std::string_view(chosen) == "1";
  if (hosts.hosts() > 1 && !own.backend.gpu_direct && asks) {
    const auto writes = RONDO_TRY(cuda.remote_writes(own.device));
    reach.gpu_direct =
        writes != transport::cuda_ipc::RemoteWrites::kImpossible && RONDO_TRY(wire_reaches_gpus());
  }
  return reach;
}

}  // namespace rondo::device
