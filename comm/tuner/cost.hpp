// The cost model: predicts the time of a collective from a link profile. Hockney's alpha-beta-gamma
// model as in Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations
// in MPICH", IJHPCA 19(1), 2005, with beta split into slots and memory, since ranks on one host pay
// for both and not for a wire. Between hosts a message pays for the wire as well: latency, an overhead
// for each message, and the bytes' time on the link of a host, which its ranks share.
#pragma once

#include <array>
#include <cstdint>

#include "comm/algorithms/formulas.hpp"
#include "comm/tuner/profile.hpp"
#include "rondo/types.hpp"

namespace rondo::tuner {

/// An operation to price. `mapped`: all ranks map every rank's buffers, as with library memory. A
/// direct algorithm without that uses copies by the kernel.
struct Question {
  Collective collective;
  Algorithm algorithm;
  int ranks;
  uint64_t bytes;  // the count argument in bytes: one block for reduce_scatter and all_gather
  bool mapped = false;
  const base::HostMap* hosts = nullptr;  // of the ranks; null: all are on one
};

/// All zero if the algorithm does not implement the collective, or needs several hosts where there is
/// one; for one rank, its single copy. A root counts as rank 0.
algorithms::Terms terms_of(const Question& question, const LinkProfile& profile);

/// The coefficient of each of kConstants, in their order, in a prediction before any correction.
/// All zero where terms_of() is.
std::array<double, kConstantCount> weights_of(const Question& question, const LinkProfile& profile);

/// A prediction in parts, out of place.
struct Price {
  double overhead_us, latency_us, slots_us, memory_us, reduce_us, process_copy_us, wire_us;
  double correction;  // LinkProfile::corrections; 1: none
  double total_us() const {
    return correction * (overhead_us + latency_us + slots_us + memory_us + reduce_us +
                         process_copy_us + wire_us);
  }
};
/// REQUIRES: the algorithm implements the collective.
Price price(const Question& question, const LinkProfile& profile);

}  // namespace rondo::tuner
