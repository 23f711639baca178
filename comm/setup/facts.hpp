// Setup, second step: every rank says what it is, and rank 0 with which settings all work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/bootstrap/session/rank_exchange.hpp"
#include "comm/device/opened_device.hpp"
#include "comm/setup/link_profile.hpp"
#include "rondo/communicator.hpp"
#include "rondo/status.hpp"
#include "transport/shm/process_copy.hpp"

namespace rondo::comm {

inline constexpr size_t kPaceChars = 64;

/// What a rank says of itself, as bytes of one build of rondo.
struct RankFacts {
  uint32_t version;
  // Settings: rank 0's hold for all.
  int32_t channels, max_channels;
  uint32_t slots;
  uint32_t algorithm;
  uint32_t reproducible;
  uint32_t wrapping_averages;
  uint32_t links_named;
  uint64_t slot_bytes;
  uint64_t token;  // random
  char pace[kPaceChars];
  // The rank's own.
  uint64_t arena_bytes;  // 0: no library memory
  int32_t device;        // -1: none
  int32_t granted_cpus;  // by its control group; those of a host's first rank count for the host
  transport::shm::Probe probe;
  device::DeviceFacts gpu;  // where there is a device
};

/// Those of one rank, with what has no fixed size.
struct FullFacts {
  RankFacts rank;
  std::string cpu_mask;  // kernels::allowed_cpus()
  std::string links;     // rank 0's link profile
};

/// Gives this rank's facts, and its process's arena as a descriptor; returns what all ranks have given.
/// `inherited`: the links of the communicator that this one is made from; without them rank 0 reads
/// Config::links. `gpu`: null without a device.
Result<std::vector<Parcel>> exchange_facts(RankExchange& ranks, const Config& config,
                                           const std::optional<AgreedLinks>& inherited,
                                           const device::DeviceFacts* gpu);

std::string pack(const FullFacts& facts);
/// Nothing: another version of rondo has packed them.
std::optional<FullFacts> unpack_facts(std::string_view bytes);

}  // namespace rondo::comm
