// What --strategy dp makes a step of on one rank, once its samples are there (examples/strategy_dp.hpp):
// a model in the host's memory, or on a GPU (device_replica.hpp).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/weights.hpp"

namespace rondo::trainer {

/// All of its collectives have this root, and go by the star.
inline constexpr int kReplicaRoot = 0;
inline constexpr CallOptions kStarCall{.algorithm = Algorithm::kStar};

/// A rank's share of a step.
struct ReplicaShare {
  const Batch& batch;
  uint64_t number;     // of the step
  uint64_t all_terms;  // of the loss, of all ranks; not 0
  double rate;         // the learning rate
};

/// What a step has made: loss and update on the root only.
struct ReplicaStep {
  double loss = 0;  // sum over all ranks
  Update update{.made = true};
  /// When parameters had come, gradients were computed, and those of all ranks had come to the root;
  /// and the step's end. CLOCK_MONOTONIC nanoseconds.
  int64_t scattered_ns = 0, computed_ns = 0, gathered_ns = 0, end_ns = 0;
};

/// One thread. Every rank makes the same calls.
class Replica {
 public:
  virtual ~Replica() = default;
  /// Run::weights hold what the run begins with.
  virtual Status begin() = 0;
  /// Every rank gets the root's parameters and buffers and computes; the root gets the loss's sum and
  /// the gradients' mean over all loss terms, and updates.
  virtual Result<ReplicaStep> step(const ReplicaShare& share) = 0;
  /// Every rank's parameters and buffers become the root's.
  virtual Status replicate() = 0;
  /// The root's Run::weights have the values of its last update.
  virtual Status fetch() = 0;
  /// Adds to the summary where it is.
  virtual void describe(nlohmann::ordered_json& summary) const = 0;
};

/// Notes which parameters a backward pass used, for the optimizer: nothing travels meanwhile.
class UsedParameters : public BackwardListener {
 public:
  explicit UsedParameters(DistributedDataParallel& ddp) : ddp_(ddp), quiet_(ddp.no_sync()) {}
  void layer_begins(int /*layer*/) override {}
  void gradient_ready(int parameter, size_t count) override {
    ddp_.gradient_ready(static_cast<size_t>(parameter), count);
  }
  void gradient_skipped(int /*parameter*/) override {}

 private:
  DistributedDataParallel& ddp_;
  const DistributedDataParallel::NoSync quiet_;
};

}  // namespace rondo::trainer
