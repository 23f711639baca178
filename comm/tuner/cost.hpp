// The cost model: predicts the time of a collective from a link profile. Hockney's alpha-beta-gamma
// model as in Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
// in MPICH", IJHPCA 19(1), 2005, with beta split into slots and memory, since ranks on one host pay
// for both and not for a wire.
#pragma once

#include <array>
#include <cstdint>

#include "comm/tuner/profile.hpp"
#include "rondo/types.hpp"

namespace rondo::tuner {

/// What a collective costs one rank (the busiest), in units that a profile prices. Exact for the
/// schedules of comm/schedule.
struct Terms {
  double hops = 0;           // of latency, one after the other
  double peers = 0;          // served or polled beyond the first of each hop
  double slot_bytes = 0;     // into slots plus out of slots
  double one_way_bytes = 0;  // of these, how many more go one way than the other
  double memory_bytes = 0;   // of own or peers' buffers, read plus written
  double reduced_bytes = 0;  // folded into others
  // What the kernel copies between processes where a direct algorithm's buffers are not mapped;
  // those bytes are among memory_bytes, too.
  double process_copies = 0;
  double process_copied_bytes = 0;
};

/// `bytes`: the collective's own count argument in bytes, that is one block for reduce_scatter and
/// all_gather. All zero where the algorithm does not do the collective; for one rank, the one copy.
Terms terms_of(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
               const LinkProfile& profile);

/// What is to be priced. `mapped`: every rank's buffers are mapped by all, as library memory is. A
/// direct algorithm that is not: by the kernel's copies between processes.
struct Question {
  Collective collective;
  Algorithm algorithm;
  int ranks;
  uint64_t bytes;  // as in terms_of
  bool mapped = false;
};

/// How much of each of kConstants, in their order, a prediction is made of, before any correction.
/// All zero where the algorithm does not do the collective.
std::array<double, kConstantCount> weights_of(const Question& question, const LinkProfile& profile);

/// A prediction in parts, out of place.
struct Price {
  double overhead_us, latency_us, slots_us, memory_us, reduce_us, process_copy_us;
  double correction;  // LinkProfile::corrections; 1 where they say nothing
  double total_us() const {
    return correction *
           (overhead_us + latency_us + slots_us + memory_us + reduce_us + process_copy_us);
  }
};
/// REQUIRES: the algorithm does the collective.
Price price(const Question& question, const LinkProfile& profile);

/// Microseconds, out of place, on the memory that the algorithm needs: mapped for direct ones,
/// plain for others. Infinity where the algorithm does not do the collective.
double predict_us(Collective collective, Algorithm algorithm, int ranks, uint64_t bytes,
                  const LinkProfile& profile);

}  // namespace rondo::tuner
