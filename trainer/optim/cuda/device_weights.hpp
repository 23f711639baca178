// One rank's parameters, gradients and the optimizer's state in device memory, and the update there.
// The optimizer's own values are float: masters of the parameters (which are the parameters
// themselves in float) and moments, of what this rank owns only. Nothing waits for the device but
// upload() and download(), between it and a host's Weights, whose checkpoints and files are its.
#pragma once

#include <type_traits>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/base/device.hpp"
#include "trainer/layers/cuda/block.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/cuda/step_state.hpp"
#include "trainer/optim/weights.hpp"

namespace rondo::trainer {

/// One thread. T is float, cuda::BFloat16Bits or cuda::Float16Bits: that of parameters and gradients.
/// With halves the loss is scaled (LossScaler), by a scale on the device.
template <class T>
class DeviceWeights {
 public:
  /// Borrowed. `communicator` is on `device`, `host` has the same ranks and is on none.
  struct WeightParts {
    Device& device;
    Model<T>& model;
    Communicator& communicator;
    Communicator& host;
    const TrainOptions& options;
  };
  /// Compares all ranks' models; binds the model. Throws std::bad_alloc.
  static Result<DeviceWeights> create(const WeightParts& parts);

  DistributedDataParallel& ddp() { return ddp_; }
  /// Wait until it is there: parameters, buffers, and what this rank owns of the optimizer's state.
  /// `mirror` is unsharded, with the same tensors, and has all ranks' same parameters. Collective.
  Status upload(Weights<float>& mirror);
  /// The other way. Collective where ranks own shards: all get everything.
  Status download(Weights<float>& mirror);

  /// Enqueues the copy of what differs in the step that begins, of whose loss terms this rank has
  /// `own`: all else that a step enqueues here is the same in every step. REQUIRES: the stream has
  /// passed the copy of two steps ago.
  struct StepTerms {
    uint64_t own, all;
    double gradient_factor = 1;  // of the averaged gradients
  };
  void begin_step(double rate, const StepTerms& terms);
  /// Gradients are summed over the ranks, not averaged: a step's passes multiply them by these, and
  /// the update by what remains.
  LossFactors loss_factors() const;
  /// Whether buckets may be updated one by one as soon as they are reduced (Weights).
  bool updates_along() const { return !examines() && !ddp_.is_sharded(); }
  void begin_update();
  void update_bucket(size_t bucket);
  /// All buckets, from the last to the first, whose parameters then travel where ranks own shards.
  Status update();
  /// Leaves zeros as gradients: every backward pass may add.
  void end_update();
  /// A graph is enqueued into which begin_update() to end_update() were captured.
  void replayed() { ++updates_; }
  /// Of the last update that the stream has passed. Null: all are made, and no norm is limited.
  const cuda::UpdateResult* result() const { return examines() ? &state_.data()->result : nullptr; }
  /// It changes with every update that is enqueued.
  uint64_t updates() const { return updates_; }

 private:
  /// What this rank owns, one range after the other: where element `begin` of the flat storage is.
  struct OwnPlace {
    DdpRange range;
    size_t begin;
  };
  static constexpr bool kOwnMasters = !std::is_same_v<T, float>;
  static constexpr bool kScales = std::is_same_v<T, cuda::Float16Bits>;

  DeviceWeights(const WeightParts& parts, DistributedDataParallel ddp);
  /// Whether something of all gradients must be known before one of them is used.
  bool examines() const { return kScales || max_norm_ > 0; }
  size_t place_of(size_t element) const;
  void update_range(const DdpRange& range);
  void map_decays();
  Status find_squares();
  void clear_gradients();
  template <class Copy>
  void for_own_pieces(Weights<float>& mirror, const Copy& copy);
  T* parameters() { return static_cast<T*>(ddp_.parameters()); }
  T* gradients() { return static_cast<T*>(ddp_.gradients()); }
  /// Of the own element at this place.
  float* masters(size_t element);

  Device& device_;
  Model<T>& model_;
  Communicator& communicator_;
  Communicator& host_;
  const OptimizerOptions optimizer_;
  const double max_norm_;
  const bool averages_ranks_;
  const bool travels_in_half_;  // fp16, in which sums over all loss terms would overflow
  const double full_terms_;     // of all ranks, in a step of full batches
  DistributedDataParallel ddp_;
  std::vector<OwnPlace> own_;
  DeviceArray<uint8_t> decays_;                // cuda::DecayMap
  DeviceArray<float> masters_;                 // of own elements; empty where parameters are float
  std::vector<DeviceArray<float>> moments_;    // by the optimizer's names, in their order
  DeviceArray<double> partial_, squares_;      // of blocks; their sum; if it examines()
  DeviceArray<cuda::StepState<float>> state_;  // one
  PinnedArray<cuda::StepValues> pinned_values_;  // of two steps, in turn
  uint64_t begun_ = 0, updates_ = 0;
};

}  // namespace rondo::trainer
