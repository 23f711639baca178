// One rank's model and everything that is as large as it: parameters and gradients (the reducer's),
// the optimizer's state, and in low precision the rounded copy that computes. Knows no data.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/base/buffer.hpp"
#include "trainer/base/interval.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/loss_scaler.hpp"
#include "trainer/optim/optimizer.hpp"

namespace rondo::trainer {

template <class T>
constexpr DataType type_of() {
  return sizeof(T) == 8 ? DataType::kFloat64 : DataType::kFloat32;
}

/// The optimizer's, and the reducer's, of a run.
OptimizerOptions optimizer_options(const TrainOptions& options);
DdpOptions ddp_options(const TrainOptions& options);
std::vector<DdpTensor> tensors_of(const std::vector<Parameter>& parameters);

/// What became of a step's update.
struct Update {
  bool made = false;  // false: gradients that are not finite; the loss scale has shrunk
  double norm = 0;    // of all gradients together; only where it is clipped, else 0
};

/// One thread. T is the type of arithmetic.
template <class T>
class Weights {
 public:
  /// Compares all ranks' models; binds `model`, which is borrowed, as the communicator is.
  static Result<Weights> create(Model<T>& model, Communicator& communicator,
                                const TrainOptions& options);

  DistributedDataParallel& ddp() { return ddp_; }
  Optimizer<T>& optimizer() { return *optimizer_; }
  std::optional<LossScaler>& scaler() { return scaler_; }

  /// Keyed by the seed, on this rank only.
  void initialise_parameters(uint64_t seed);
  /// Every rank's parameters and buffers become rank 0's.
  Status replicate();

  /// Buckets have changed: follow them. Between update() and the next.
  void use_layout() { bucket_updates_.assign(ddp_.layout().size(), {}); }

  /// What the loss is multiplied by.
  T loss_scale() const { return scaler_ ? static_cast<T>(scaler_->scale()) : T{1}; }

  /// Whether each bucket can be updated as soon as it is reduced, which fills the wait for the
  /// others: nothing has to be known of all gradients before (their norm, or for fp16 whether they
  /// are finite), and there are no shards, which are updated in another order.
  bool updates_along(double max_norm) const {
    return !ddp_.is_sharded() && !scaler_ && max_norm == 0;
  }
  /// Such an update: begin, each bucket whose gradients are averaged, in any order, end.
  void begin_update(double rate);
  void update_bucket(size_t bucket);
  void end_update();
  /// Any other update, when all gradients are averaged: the same bits on every rank. With shards
  /// the parameters of a bucket start to travel as soon as they are updated, while the next bucket
  /// is updated: the last bucket first, with which the next forward begins.
  Result<Update> update(double rate, double max_norm);
  /// When the last update worked on each bucket; CLOCK_MONOTONIC nanoseconds.
  const std::vector<Interval>& bucket_updates() const { return bucket_updates_; }
  /// Until then parameters must not be used: what update() has sent is waited for, bucket by
  /// bucket, and in low precision rounded while later ones still travel. False: that was done
  /// before.
  Result<bool> await_parameters();

  /// Whether all gradients are zeros, so that the next step's first micro-batch can add to them,
  /// as the others do, instead of writing: a matrix library clears before it writes. After an
  /// update() without shards they are.
  bool gradients_cleared() const { return cleared_; }
  /// After what no update() followed.
  void clear_gradients();

 private:
  Weights(Model<T>& model, Communicator& communicator, DistributedDataParallel ddp,
          const TrainOptions& options);
  void bind();
  void round_copy(size_t begin, size_t end);
  std::vector<size_t> parameters() const;  // indices of tensors that are parameters

  Model<T>& model_;
  Communicator& communicator_;
  DistributedDataParallel ddp_;
  std::unique_ptr<Optimizer<T>> optimizer_;
  std::optional<LossScaler> scaler_;  // fp16
  const std::string dtype_;
  std::vector<Interval> bucket_updates_;
  Buffer<T> copy_;          // bf16, fp16: the parameters as they compute
  bool under_way_ = false;  // updated, await_parameters() not yet called
  bool cleared_ = true;     // all gradients are zeros
};

}  // namespace rondo::trainer
