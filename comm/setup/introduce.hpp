// Setup, second step: every rank says what it is, and rank 0 with which settings all work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/bootstrap/bootstrap.hpp"
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
  uint32_t cpu_mask_bytes;  // follow the facts: kernels::allowed_cpus()
};

struct Introduced {
  std::vector<RankFacts> ranks;  // [rank]
  int cpus;                      // that the ranks of this host together may use
  /// The host with the most ranks for a CPU; equal on all ranks.
  struct {
    int ranks, cpus;
  } busiest;
  AgreedLinks links;  // rank 0's, for a host with a core for every rank
  bool same_process;  // all ranks are threads of this one
  uint64_t token;     // rank 0's: no other communicator has it
};

/// Exchanges the facts, and puts rank 0's settings into `config`. `inherited`: the links of the
/// communicator that this one is made from; without them rank 0 reads Config::links.
/// kBootstrap: another version of rondo; kInvalidArgument: a device on some ranks only.
Result<Introduced> introduce(Bootstrap& bootstrap, Config& config,
                             const std::optional<AgreedLinks>& inherited);

}  // namespace rondo::comm
