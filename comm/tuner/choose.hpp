// The choice of algorithm: the one with the lowest prediction among those that the transport
// supports. Pure and deterministic, so that ranks with the same profile choose alike without
// communicating.
#pragma once

#include <optional>
#include <vector>

#include "comm/tuner/cost.hpp"

namespace rondo::tuner {

/// The capabilities of an operation's transport and buffers.
struct Available {
  bool publish = false;     // one writer, many readers
  bool references = false;  // peers' buffers are mapped; staged algorithms are priced so too
  bool signals = false;     // counters
  bool copies = false;      // GPUs' copy engines; used only where the caller asks for them
  /// The kernel copies between processes where peers' buffers are not mapped, so operations that
  /// only copy can still be direct.
  bool process_copy = false;
  /// Ranks announce the buffers that they offer before they go direct (engine::Runner), so that one
  /// that is in place can make all of them use slots. Kernels on a device do not.
  bool offers = false;
  /// Reductions must fold in rank order, at once and in one place: for Config::reproducible, and
  /// where averages_integers().
  bool rank_order_only = false;
  /// The type folded, where the order matters; none: one that slots round.
  std::optional<DataType> type = {};
  /// Inputs of this type are each multiplied by their rank's factor (kMulSum).
  std::optional<DataType> scaled = {};
  /// Of the ranks; null: all are on one. Between hosts nothing is shared, whatever is said above.
  const base::HostMap* hosts = nullptr;
};

/// Whether the algorithm can fold inputs that are scaled in transit. In one-shot every rank folds
/// its own input unrounded and the others' rounded, which would give small types different bits.
bool can_scale(DataType type, Algorithm algorithm);

/// Whether the operation is an average of integers. A partial sum may be too large for the type, so
/// one rank must add all inputs at once, in a wider type, and divide.
constexpr bool averages_integers(DataType type, ReduceOp op) {
  return op == ReduceOp::kAvg && !is_floating(type);
}

/// `bytes` as in Question. With several hosts, reductions that must fold in rank order go by two-shot,
/// star or chain: their bits do not depend on which ranks share a host. Of equal predictions the first in the order of Algorithm wins. The
/// ring, and where it is excluded two-shot or the star, have no requirements, so there is always a
/// choice (else kAuto). `in_place`: whether some rank's buffers may be in place; algorithms that are then unsafe
/// are excluded. Exception: if no safe direct algorithm exists and ranks make offers, an unsafe
/// direct one may be chosen, because a rank in place makes no offer.
Algorithm choose(Collective collective, int ranks, uint64_t bytes, const Available& available,
                 bool in_place, const LinkProfile& profile);

/// Every algorithm of the collective, cheapest first, with the reason why it may not be used: to
/// explain a choice. Where all ranks are on one host, without those for several.
struct Candidate {
  Algorithm algorithm;
  Price price;
  const char* refusal;  // null: it may be used
};
std::vector<Candidate> candidates(Collective collective, int ranks, uint64_t bytes,
                                  const Available& available, bool in_place,
                                  const LinkProfile& profile);

}  // namespace rondo::tuner
