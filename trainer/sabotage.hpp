// --break: mistakes made on purpose, for lessons and for who wants to see their symptom. Nothing
// here happens without that flag.
#pragma once

#include <chrono>
#include <thread>

#include "rondo/communicator.hpp"
#include "trainer/options.hpp"

namespace rondo::trainer {

/// Whose share of the data this rank reads.
inline uint64_t rank_that_reads(const Options& options, const Communicator& communicator) {
  return options.sabotage == "same-data" ? 0 : static_cast<uint64_t>(communicator.rank());
}

/// What set_epoch() is told.
inline uint64_t order_of_epoch(const Options& options, uint64_t epoch) {
  return options.sabotage == "no-set-epoch" ? 0 : epoch;
}

/// Before a forward pass: what a slow disk, a hot core or a neighbour's job would do. It sleeps, so
/// that on a machine with few cores it slows down nobody else.
inline void lag(const Options& options, const Communicator& communicator) {
  if (options.sabotage != "straggler" || communicator.rank() + 1 != communicator.size()) return;
  std::this_thread::sleep_for(std::chrono::milliseconds{200});
}

}  // namespace rondo::trainer
