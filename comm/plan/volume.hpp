// What an algorithm must move by its formula, independently of the schedule that is to prove it.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/types.hpp"

namespace rondo::plan {

/// In S/N, S being all data (the larger buffer) and N the number of ranks. Counted as
/// schedule::Traffic counts: a published slot once. For chunks of one length; where they differ the
/// formula holds for what it says is undivided.
struct Volume {
  uint64_t sent, fetched;
  std::string sent_text, fetched_text;  // "2(N-1)/N * S"
};

/// REQUIRES: the algorithm does the collective, ranks >= 2, and it is not a barrier (which moves no
/// data).
Volume volume_of(Collective collective, Algorithm algorithm, int ranks, int rank, int root);

}  // namespace rondo::plan
