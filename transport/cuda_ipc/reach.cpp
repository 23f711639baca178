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
  Result<bool> access = cuda.can_access_peer(device, peer);
  RONDO_RETURN_IF_ERROR(access.status());
  if (!*access) return Reach::kHost;
  Result<DeviceInfo> own = cuda.device_info(device), other = cuda.device_info(peer);
  RONDO_RETURN_IF_ERROR(own.status());
  RONDO_RETURN_IF_ERROR(other.status());
  return peer_by(cuda, own->pci_bus.data(), other->pci_bus.data());
}

Result<Reach> slowest_reach(CudaCalls& cuda, const DevicePlace& own,
                            std::span<const DevicePlace> places) {
  Result<int> count = cuda.device_count();
  RONDO_RETURN_IF_ERROR(count.status());
  std::map<DeviceId, int> seen;
  for (int device = 0; device < *count; ++device) {
    Result<DeviceInfo> info = cuda.device_info(device);
    RONDO_RETURN_IF_ERROR(info.status());
    seen.emplace(info->uuid, device);
  }
  Reach slowest = Reach::kSameGpu;
  for (const DevicePlace& place : places) {
    if (place.device == own.device) continue;
    const auto found = seen.find(place.device);
    Result<Reach> reach = found == seen.end()
                              ? peer_by(cuda, own.pci_bus.data(), place.pci_bus.data())
                              : reach_between(cuda, own.number, found->second);
    RONDO_RETURN_IF_ERROR(reach.status());
    slowest = std::max(slowest, *reach);
  }
  return slowest;
}

}  // namespace rondo::transport::cuda_ipc
