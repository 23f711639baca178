// Which samples belong to which step and rank: a pure function of (seed, epoch, step, rank),
// without memory. The global order does not depend on how many ranks share it, so N ranks with
// batch B see what one rank with batch N*B sees.
#pragma once

#include <cstdint>

namespace rondo::trainer {

/// A bijection of [0, size) chosen by `key`, in constant memory: a Feistel network over the next
/// power of four, walked until it lands inside (Black and Rogaway 2002). A table would need 8 bytes
/// per sample on every rank.
class Permutation {
 public:
  /// REQUIRES: 1 <= size <= 2^62.
  Permutation(uint64_t size, uint64_t key);
  /// REQUIRES: i < size.
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t size_, key_, half_mask_;
  int half_bits_;
};

/// The global samples of each step.
struct SampleOrder {
  uint64_t samples;       // in one epoch
  uint64_t global_batch;  // of one step, at most `samples`
  uint64_t seed;

  /// The rest of an epoch that does not fill a step is left out, a different one each time.
  uint64_t steps_per_epoch() const { return samples / global_batch; }
  /// Steps count from 1, epochs from 0.
  uint64_t epoch_of(uint64_t step) const { return (step - 1) / steps_per_epoch(); }
  /// Position in the data of each sample of this step's epoch; entry j of the step is
  /// permutation(first_of(step) + j).
  Permutation permutation_of(uint64_t step) const;
  uint64_t first_of(uint64_t step) const { return (step - 1) % steps_per_epoch() * global_batch; }
};

}  // namespace rondo::trainer
