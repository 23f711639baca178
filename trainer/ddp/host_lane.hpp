// Carries buckets in the host's memory: an all-reduce each, or a reduce-scatter where ranks own
// shards, or what a communication hook or touched rows make of it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/ddp/bucket_view.hpp"
#include "trainer/ddp/lane.hpp"

namespace rondo::ddp {

/// Whether gradients are scaled before a plain sum: 16 bits have no reproducible scaled sum.
bool scales_here(const Communicator& communicator, DataType type);

/// Starts what reduces a bucket without a hook.
Work reduce_bucket(Communicator& communicator, const GradientBucket& bucket);

class HostLane final : public Lane {
 public:
  HostLane(Communicator& communicator, const GradientStorage& gradients, const DdpOptions& options);

  Status status() override { return {}; }
  void begin() override;
  SecondGradient* second_gradient(size_t tensor) override {
    return seconds_[tensor].gradient.get();
  }
  void exchange_counts() override;
  Status send_buffers(void* data, size_t bytes, int root) override;
  Status receive_buffers() override { return buffers_->wait(); }
  /// Then starts the next collective of each earlier bucket whose hook has more, when the one before
  /// has ended. Throws what a hook throws, and std::bad_alloc.
  Status start(const Departure& departure) override;
  size_t started() const override { return flights_.size(); }
  /// Waits until that bucket has been reduced, and writes its gradients. Throws as start() does.
  Status finish(size_t bucket) override;
  const std::vector<DdpBucketTimes>& times() override { return times_; }
  /// Waits until nothing uses the memory of buckets and buffers.
  void settle() override;

 private:
  /// Of one tensor that adds to another.
  struct Second {
    std::unique_ptr<SecondGradient> gradient;  // null: an ordinary tensor
    std::vector<DdpRange> own;                 // this rank's, from the other's first element
  };

  /// A bucket on its way.
  struct Flight {
    int64_t ready_ns;                 // Departure's
    Work work;                        // of the last collective that has started
    size_t collectives, started = 1;  // of the hook
    Work::Times first{};              // of the first, when others have started
  };

  Status advance(size_t bucket);
  Work::Times times_of(const Flight& flight) const;
  Second& second_of(size_t bucket) {
    return seconds_[gradients_.layout.buckets[bucket].pieces.front().tensor];
  }

  Communicator& communicator_;
  const GradientStorage gradients_;
  const DdpOptions& options_;
  BucketView view_;
  std::vector<Second> seconds_;  // by tensor
  std::vector<DdpBucketTimes> times_;

  // The step under way.
  double factor_ = 0;
  std::optional<Work> buffers_;
  std::vector<Flight> flights_;  // in bucket order
};

}  // namespace rondo::ddp
