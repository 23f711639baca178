// Which rank is on which GPU, and what follows from it. Pure functions of what the ranks tell each
// other when they meet, so that all decide alike; nothing here calls CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "rondo/status.hpp"

namespace rondo::transport::cuda_ipc {

/// How kernels of one GPU reach another one's memory, from the fastest to the slowest.
enum class Reach : uint8_t {
  kSameGpu,
  kNvlink,
  kPeer,  // peer access over PCI Express, or over what NVML does not call NVLink
  kHost,  // not at all: through host memory that both map
};

/// "NVLink", and so on.
constexpr std::string_view name(Reach reach) {
  constexpr std::string_view kNames[] = {"one GPU", "NVLink", "peer access", "host memory"};
  return kNames[static_cast<size_t>(reach)];
}

using DeviceId = std::array<std::byte, 16>;  // DeviceInfo::uuid

/// Where a rank is.
struct DevicePlace {
  uint64_t process;  // the same number exactly for threads of one process
  DeviceId device;
  int number;                      // of that device, in that process
  int multiprocessors;             // of that device
  int elsewhere = 0;               // blocks there that other communicators of that process may take
  std::array<char, 32> pci_bus{};  // DeviceInfo::pci_bus
};

/// Every block of every rank must be on its multiprocessor before any of them can end: a block that
/// waits for a place while others wait for it waits for ever. kUnavailable where `channels` blocks
/// of each rank on some device, `blocks_at_once` on a multiprocessor, do not all fit
/// beside those of the processes' other communicators.
Status check_residency(std::span<const DevicePlace> places, int channels, int blocks_at_once);

/// How many channels leave room for others: at most `most`, and together at most a quarter of what
/// any device holds, but one.
int modest_channels(std::span<const DevicePlace> places, int blocks_at_once, int most);

/// How many ranks share a device, at most.
int most_on_a_device(std::span<const DevicePlace> places);

/// A sentence for the log where ranks share a device while another one of `devices` (this host's)
/// has none; else empty.
std::string sharing_warning(std::span<const DevicePlace> places, std::span<const DeviceId> devices);

}  // namespace rondo::transport::cuda_ipc
