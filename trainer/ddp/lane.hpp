// Carries buckets: an all-reduce each, or a reduce-scatter where ranks own shards, or what a
// communication hook or touched rows make of it. Knows neither when a bucket is complete nor what
// becomes of its gradients.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/memory.hpp"
#include "trainer/ddp/second_gradient.hpp"
#include "trainer/ddp/shards.hpp"

namespace rondo::ddp {

/// One rank's gradients. Borrowed.
struct Gradients {
  const std::vector<DdpTensor>& tensors;
  const BucketLayout& layout;
  const Shards& shards;
  GradientMemory& memory;
};

/// Whether gradients are scaled before a plain sum: 16 bits have no reproducible scaled sum.
bool scales_here(const Communicator& communicator, DataType type);

/// Starts what reduces a bucket without a hook.
Work reduce_bucket(Communicator& communicator, const GradientBucket& bucket);

/// One thread. A step is: begin(), exchange_counts(), start() and then finish() of each bucket in
/// order, settle().
class BucketLane {
 public:
  BucketLane(Communicator& communicator, const Gradients& gradients, const DdpOptions& options);

  void begin();
  /// Null: the tensor adds to no other.
  SecondGradient* second_gradient(size_t tensor) { return seconds_[tensor].gradient.get(); }
  void exchange_counts();
  /// The next bucket's gradients are final on this rank: starts to send them, each multiplied by
  /// `factor`. Then starts the next collective of each earlier bucket whose hook has more, when the
  /// one before has ended. Throws what a hook throws, and std::bad_alloc.
  Status start(double factor);
  size_t started() const { return flights_.size(); }
  /// Waits until that bucket has been reduced, and writes its gradients. Throws as start() does.
  Status finish(size_t bucket);
  /// From its first collective to its last.
  Work::Times times(size_t bucket) const;
  /// Waits, however the step has ended, until nothing uses its memory.
  void settle();

 private:
  /// Of one tensor that adds to another.
  struct Second {
    std::unique_ptr<SecondGradient> gradient;  // null: an ordinary tensor
    std::vector<DdpRange> own;                 // this rank's, from the other's first element
  };

  /// A bucket on its way.
  struct Flight {
    Work work;                        // of the last collective that has started
    size_t collectives, started = 1;  // of the hook
    Work::Times first{};              // of the first, when others have started
  };

  GradientBucket bucket_of(size_t index);
  Status advance(size_t bucket);
  Second& second_of(size_t bucket) {
    return seconds_[gradients_.layout.buckets[bucket].pieces.front().tensor];
  }

  Communicator& communicator_;
  const Gradients gradients_;
  const DdpOptions& options_;
  std::vector<Second> seconds_;  // by tensor

  // The step under way.
  double factor_ = 0;
  std::vector<Flight> flights_;                    // in bucket order
  std::vector<GradientBucket::BucketPart> parts_;  // of the bucket that was last shown to the hook
};

}  // namespace rondo::ddp
