// Sends gradients round while backward still computes others: one asynchronous all-reduce per
// bucket, issued as soon as the bucket's last gradient is final, always in bucket order. Knows
// buckets and the communicator, but neither the model nor the optimizer; sums, and leaves the
// scaling to whoever computes the gradients.
#pragma once

#include <vector>

#include "rondo/communicator.hpp"
#include "trainer/buckets.hpp"

namespace rondo::trainer {

/// One thread. A step is: begin(), gradient_ready() once for every parameter in any order,
/// finish().
class Reducer {
 public:
  struct Options {
    DataType type;
    /// False: everything is issued by finish(), to measure what overlap is worth.
    bool overlap = true;
  };

  /// `gradients`: the flat storage that `layout` describes. Everything is borrowed.
  Reducer(Communicator& communicator, const BucketLayout& layout, void* gradients,
          const Options& options);

  void begin();
  void gradient_ready(int parameter);
  /// Issues what is left and waits for every bucket, in order. ok: all gradients are summed over
  /// the ranks. The first failure otherwise, after all have ended, so that no peer or progress
  /// thread still touches the gradients.
  Status finish();

  /// Of the last finished step, by bucket.
  const std::vector<Work::Times>& times() const { return times_; }

 private:
  void issue(size_t bucket);

  Communicator& communicator_;
  const BucketLayout& layout_;
  std::byte* const gradients_;
  const Options options_;
  std::vector<size_t> bucket_of_;  // by parameter
  std::vector<char> ready_;        // by parameter, this step
  std::vector<int> missing_;       // by bucket: gradients that are not final yet
  std::vector<Work> works_;        // issued in this step, in bucket order
  std::vector<Work::Times> times_;
};

}  // namespace rondo::trainer
