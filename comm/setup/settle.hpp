// Setup, third step: what follows from the facts of all ranks. Pure: every rank decides alike.
#pragma once

#include <span>
#include <vector>

#include "comm/setup/facts.hpp"
#include "comm/setup/sizes.hpp"

namespace rondo::comm {

struct Agreement {
  std::vector<RankFacts> ranks;  // [rank]
  AgreedLinks links;             // rank 0's, for a host with a core for every rank
  HostSizes sizes;
  /// Rank 0's: no other communicator has it.
  uint64_t token() const { return ranks[0].token; }
};

/// `facts`: what exchange_facts() has given. Puts rank 0's settings into `config`. kBootstrap: another version of rondo;
/// kInvalidArgument: a device on some ranks only.
Result<Agreement> settle(std::span<const Parcel> facts, const base::HostMap& hosts, int rank,
                         Config& config);

}  // namespace rondo::comm
