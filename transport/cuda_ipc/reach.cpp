#include "transport/cuda_ipc/reach.hpp"

#include <algorithm>
#include <map>

namespace rondo::transport::cuda_ipc {

namespace {
Reach peer_by(CudaCalls& cuda, const char* bus, const char* peer_bus) {
  return cuda.has_nvlink(bus, peer_bus) ? Reach::kNvlink : Reach::kPeer;
}
}  // namespace

Result<Reach> reach_between(CudaCalls& cuda, int device, int peer) {
  if (device == peer) return Reach::kSameGpu;
  bool access = RONDO_TRY(cuda.can_access_peer(device, peer));
  if (!access) return Reach::kHost;
  const DeviceInfo own = RONDO_TRY(cuda.device_info(device));
  const DeviceInfo other = RONDO_TRY(cuda.device_info(peer));
  return peer_by(cuda, own.pci_bus.data(), other.pci_bus.data());
}

Result<Reach> slowest_reach(CudaCalls& cuda, const DevicePlace& own,
                            std::span<const DevicePlace> places) {
  int count = RONDO_TRY(cuda.device_count());
  std::map<DeviceId, int> seen;
  for (int device = 0; device < count; ++device) {
    DeviceInfo info = RONDO_TRY(cuda.device_info(device));
    seen.emplace(info.uuid, device);
  }
  Reach slowest = Reach::kSameGpu;
  for (const DevicePlace& place : places) {
    if (place.device == own.device) continue;
    const auto found = seen.find(place.device);
    Reach reach =
        RONDO_TRY(found == seen.end() ? peer_by(cuda, own.pci_bus.data(), place.pci_bus.data())
                                      : reach_between(cuda, own.number, found->second));
    slowest = std::max(slowest, reach);
  }
  return slowest;
}

}  // namespace rondo::transport::cuda_ipc
