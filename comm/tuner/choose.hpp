// The choice of algorithm: the cheapest of those that the transport can carry, by prediction. Pure
// and deterministic, so that ranks with the same profile choose alike without talking.
#pragma once

#include <optional>
#include <vector>

#include "comm/tuner/cost.hpp"

namespace rondo::tuner {

/// What the transport, and the buffers, of this operation allow.
struct Available {
  bool publish = false;     // one writer, many readers
  bool references = false;  // peers' buffers are mapped; staged algorithms are priced so too
  bool signals = false;     // counters
  /// Where peers' buffers are not mapped, the kernel copies between processes: what only copies can
  /// be direct all the same.
  bool process_copy = false;
  /// Ranks tell each other which buffers they offer before they go direct (engine::Runner), so that
  /// one that is in place can make all of them go through slots. Kernels on a device do not.
  bool offers = false;
  /// Reductions must fold in rank order (Config::reproducible).
  bool rank_order_only = false;
  /// Inputs of this type are each multiplied by their rank's factor (kScaledSum).
  std::optional<DataType> scaled = {};
};

/// Whether the algorithm can fold inputs that are scaled on the way. In one-shot everybody folds
/// its own input as it is and the others' as they were rounded, which small types must not tell
/// apart.
bool can_scale(DataType type, Algorithm algorithm);

struct Choice {
  Algorithm algorithm;
  double predicted_us;
};

/// `bytes` as in predict_us. Of equal predictions the first in the order of Algorithm wins. The
/// ring, and where it may not be used two-shot or the star, need nothing, so there always is a
/// choice.
/// `in_place`: whether some rank's buffers may be. What is not safe then is not chosen; but a
/// direct algorithm is, where there is no safe one and ranks make offers: a rank that is in place
/// makes none.
Choice choose(Collective collective, int ranks, uint64_t bytes, const Available& available,
              bool in_place, const LinkProfile& profile);

/// Every algorithm that does the collective, cheapest first, and why it may not be used: for
/// explaining a choice.
struct Candidate {
  Algorithm algorithm;
  Price price;
  const char* refusal;  // null: it may be used
};
std::vector<Candidate> candidates(Collective collective, int ranks, uint64_t bytes,
                                  const Available& available, bool in_place,
                                  const LinkProfile& profile);

}  // namespace rondo::tuner
