// Carries buckets in a GPU's memory: each is reduced on the communication stream when the compute
// stream has its gradients, and the compute stream waits for that. The host waits for nothing.
#pragma once

#include <vector>

#include "trainer/ddp/bucket_view.hpp"
#include "trainer/ddp/lane.hpp"
#include "trainer/ddp/routes.hpp"
#include "trainer/ddp/stream_transfers.hpp"

namespace rondo::ddp {

class StreamLane final : public Lane {
 public:
  /// REQUIRES: a GPU, a hook that works there or none, and no tensor that adds to another. Throws
  /// GpuFailure.
  StreamLane(const Routes& routes, const GradientStorage& gradients, const DdpOptions& options);

  /// Also finds what kernels have reported since the last step.
  Status status() override;
  void begin() override { started_ = 0; }
  SecondGradient* second_gradient(size_t /*tensor*/) override { return nullptr; }
  void exchange_counts() override {}
  Status send_buffers(void* data, size_t bytes, int root) override;
  Status receive_buffers() override;
  /// Throws what a hook throws.
  Status start(const Departure& departure) override;
  size_t started() const override { return started_; }
  Status finish(size_t bucket) override { return transfers_.receive(bucket); }
  const std::vector<DdpBucketTimes>& times() override { return no_times_; }
  void settle() override { started_ = 0; }

 private:
  Status reduce(size_t index, double factor, Gpu::Stream stream);

  Communicator& communicator_;
  Gpu& gpu_;
  const GradientStorage gradients_;
  const ReduceOp sum_;             // one whose calls are alike in every step, if there is no factor
  CommunicationHook* const hook_;  // may be null
  BucketView view_;
  StreamTransfers transfers_;
  const Gpu::Event buffers_sent_;
  const std::vector<DdpBucketTimes> no_times_;
  size_t started_ = 0;
};

}  // namespace rondo::ddp
