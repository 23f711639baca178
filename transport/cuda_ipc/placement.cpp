#include "transport/cuda_ipc/placement.hpp"

#include <algorithm>
#include <map>

namespace rondo::transport::cuda_ipc {
namespace {

std::string ranks_on(std::span<const DevicePlace> places, const DeviceId& device) {
  std::string list;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].device != device) continue;
    list += (list.empty() ? "" : ", ") + std::to_string(rank);
  }
  return list;
}

ptrdiff_t count_on(std::span<const DevicePlace> places, const DeviceId& device) {
  return std::count_if(places.begin(), places.end(),
                       [&](const DevicePlace& place) { return place.device == device; });
}

// What a device holds of blocks, without those of other communicators.
int64_t room_on(std::span<const DevicePlace> places, const DevicePlace& at, int blocks_at_once) {
  std::map<uint64_t, int> elsewhere;  // by process
  for (const DevicePlace& place : places) {
    if (place.device != at.device) continue;
    int& most = elsewhere[place.process];
    most = std::max(most, place.elsewhere);
  }
  int64_t room = int64_t{at.multiprocessors} * blocks_at_once;
  for (const auto& [process, blocks] : elsewhere) room -= blocks;
  return room;
}

}  // namespace

Status check_residency(std::span<const DevicePlace> places, int channels, int blocks_at_once) {
  for (const DevicePlace& place : places) {
    const ptrdiff_t ranks = count_on(places, place.device);
    const int64_t all = int64_t{place.multiprocessors} * blocks_at_once;
    const int64_t room = room_on(places, place, blocks_at_once);
    if (ranks * channels <= room) continue;
    return {
        Code::kUnavailable,
        "ranks " + ranks_on(places, place.device) + " share one GPU and take " +
            std::to_string(channels) + " thread blocks each, but it holds only " +
            std::to_string(all) + " at a time" +
            (room < all ? ", of which other communicators may take " + std::to_string(all - room)
                        : std::string()) +
            ": they would wait for each other for ever. " +
            (room >= ranks ? "Use at most " + std::to_string(room / ranks) + " channels"
             : room < all  ? std::string("Destroy a communicator first, or use fewer ranks")
                           : std::string("Use fewer ranks")) +
            ", or more GPUs"};
  }
  return {};
}

int modest_channels(std::span<const DevicePlace> places, int blocks_at_once, int most) {
  int64_t channels = most;
  for (const DevicePlace& place : places) {
    const int64_t quarter = room_on(places, place, blocks_at_once) / 4;
    channels = std::min(channels, quarter / count_on(places, place.device));
  }
  return static_cast<int>(std::max<int64_t>(channels, 1));
}

int most_on_a_device(std::span<const DevicePlace> places) {
  ptrdiff_t most = 0;
  for (const DevicePlace& place : places) most = std::max(most, count_on(places, place.device));
  return static_cast<int>(most);
}

std::string sharing_warning(std::span<const DevicePlace> places,
                            std::span<const DeviceId> devices) {
  const auto idle = std::find_if(devices.begin(), devices.end(), [&](const DeviceId& device) {
    return count_on(places, device) == 0;
  });
  if (idle == devices.end()) return {};
  const auto shared = std::find_if(places.begin(), places.end(), [&](const DevicePlace& place) {
    return count_on(places, place.device) > 1;
  });
  if (shared == places.end()) return {};
  return "ranks " + ranks_on(places, shared->device) + " share a GPU while GPU " +
         std::to_string(idle - devices.begin()) +
         " has no rank: give every rank a device of its own to be faster";
}

}  // namespace rondo::transport::cuda_ipc
