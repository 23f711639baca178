#include "transport/cuda_ipc/reach.hpp"

#include <algorithm>
#include <map>

namespace rondo::transport::cuda_ipc {

Result<Reach> reach_between(CudaCalls& cuda, int device, int peer) {
  if (device == peer) return Reach::kSameGpu;
  Result<bool> access = cuda.can_access_peer(device, peer);
  RONDO_RETURN_IF_ERROR(access.status());
  if (!*access) return Reach::kHost;
  Result<bool> nvlink = cuda.has_nvlink(device, peer);
  RONDO_RETURN_IF_ERROR(nvlink.status());
  return *nvlink ? Reach::kNvlink : Reach::kPeer;
}

Result<Reach> slowest_reach(CudaCalls& cuda, const Place& own, std::span<const Place> places) {
  Result<int> count = cuda.device_count();
  RONDO_RETURN_IF_ERROR(count.status());
  std::map<DeviceId, int> seen;
  for (int device = 0; device < *count; ++device) {
    Result<DeviceInfo> info = cuda.device_info(device);
    RONDO_RETURN_IF_ERROR(info.status());
    seen.emplace(info->uuid, device);
  }
  Reach slowest = Reach::kSameGpu;
  for (const Place& place : places) {
    if (place.device == own.device) continue;
    const auto found = seen.find(place.device);
    Result<Reach> reach = found == seen.end() ? Result<Reach>(Reach::kPeer)
                                              : reach_between(cuda, own.number, found->second);
    RONDO_RETURN_IF_ERROR(reach.status());
    slowest = std::max(slowest, *reach);
  }
  return slowest;
}

}  // namespace rondo::transport::cuda_ipc
