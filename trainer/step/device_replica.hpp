// --strategy dp on a GPU. Everything of a step is enqueued on one stream, and its end waited for: the
// root must have the loss before the next one, as on the host. Only fp32, as there.
#pragma once

#include <array>
#include <set>

#include "trainer/base/device.hpp"
#include "trainer/optim/cuda/device_weights.hpp"
#include "trainer/step/replica.hpp"

namespace rondo::trainer {

/// Borrowed. `communicator` is on `device`, `host` has the same ranks and is on none; `mirror` is
/// Run::weights.
struct DeviceReplicaParts {
  const TrainOptions& options;
  Device& device;
  Communicator& communicator;
  Communicator& host;
  Model<float>& model;
  DeviceWeights<float>& weights;
  Weights<float>& mirror;
};

/// One thread.
class DeviceReplica final : public Replica {
 public:
  explicit DeviceReplica(const DeviceReplicaParts& parts);  // throws std::bad_alloc
  /// Waits for the stream.
  ~DeviceReplica() override;
  DeviceReplica(const DeviceReplica&) = delete;
  DeviceReplica& operator=(const DeviceReplica&) = delete;

  Status begin() override;
  Result<ReplicaStep> step(const ReplicaShare& share) override;
  Status replicate() override;
  Status fetch() override;
  void describe(nlohmann::ordered_json& summary) const override;

 private:
  enum ReplicaMoment : uint8_t { kScattered, kComputed, kGathered, kEnds, kMoments };
  struct StepResults {
    double loss;
    cuda::UpdateResult update;
  };

  bool is_root() const { return parts_.host.rank() == kReplicaRoot; }
  Status send_parameters();
  Status compute(const Batch& batch, const Pass& pass);
  Status gather();
  Status update(const ReplicaShare& share);
  Status meet();
  void mark(ReplicaMoment moment);
  Result<int64_t> ns_to_end(ReplicaMoment moment);

  const DeviceReplicaParts parts_;
  DistributedDataParallel& ddp_;
  const CallOptions star_;            // on the stream
  DeviceArray<double> loss_;          // one: this rank's sum; on the root all ranks'
  PinnedArray<StepResults> results_;  // one
  std::array<Device::Event, kMoments> moments_{};
  std::set<uint64_t> computed_;  // the terms of steps whose products have been computed
  uint64_t fetched_ = 0;         // the weights' updates() that the mirror has
};

}  // namespace rondo::trainer
