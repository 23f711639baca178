// The verifier: carries lowered programs of all ranks out on symbols instead of numbers, and says
// what is wrong with them. It proves a program for one number of ranks, count and FIFO depth at a
// time; it measures no time and knows no transport.
//
// Ranks are sequential and FIFOs have one writer each and deliver in order, so whether the ranks
// come to an end, and with what, does not depend on their timing: one execution stands for all.
// Only buffers that peers touch (kPeerIn, kPeerOut) are outside of that; for them every access
// carries a vector clock. Order that arises through slots is not credited there, only `wait posted`
// and signal / `wait signalled`: what passes may be relied on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/schedule/program.hpp"

namespace rondo::schedule {

/// One call of a collective: the programs of all ranks, lowered with the same limits.
struct LoweredOperation {
  Collective collective;
  int root = 0;
  bool in_place = false;  // In and Out overlap as communicator.hpp allows for the collective
  uint64_t count = 0;     // the collective's own argument
  std::vector<Program> programs;       // [rank]
  std::vector<BlockLayout> layouts{};  // [rank], of a _v collective
  SharedHosts hosts = nullptr;         // as the schedules have it
};

/// Elements of chunk `chunk`, as the collective is defined.
uint64_t chunk_length(const LoweredOperation& op, int chunk);

struct VerifyReport {
  std::vector<uint64_t> elements_sent;     // [rank], as in Traffic, over all operations
  std::vector<uint64_t> elements_fetched;  // [rank]
  std::vector<Crossing> crossings;         // [host]; empty where all ranks are on one
  uint64_t moves = 0;                      // of the programs, by all ranks
  /// Over all channels and operations. Of rounds that are alike only some are carried out, and
  /// stand for the others; symbolic.hpp says why they may.
  uint64_t rounds = 0, rounds_carried_out = 0;
  bool rank_order = true;  // every reduction folds its contributions in rank order 0..N-1
};

/// Proves, for operations issued one after the other over the same FIFOs without any
/// synchronisation in between, that
///  - results hold every rank's contribution exactly once (reductions: finished exactly once, by
///    the same fold everywhere), or exactly the right rank's data; after a barrier everybody is
///    known to have come;
///  - everybody comes to the end at this FIFO depth, and no slot is left over;
///  - slices and rounds cover every element once, within slots;
///  - nothing but slots of links joins ranks of different hosts;
///  - In is not read after Out, in the same place, was written, and no peer touches a buffer before
///    it is posted, while another access conflicts, or after its owner may have returned.
/// `limits`: element_bytes, slot_bytes and depth are used. Otherwise kDataError, with a sentence
/// that names rank and step.
Result<VerifyReport> verify(std::span<const LoweredOperation> operations, const Limits& limits);

}  // namespace rondo::schedule
