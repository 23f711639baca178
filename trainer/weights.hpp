// One rank's model and everything that is as large as it: parameters and gradients (the reducer's),
// the optimizer's state, and in low precision the rounded copy that computes. Knows no data.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/buffer.hpp"
#include "trainer/interval.hpp"
#include "trainer/model.hpp"
#include "trainer/optim/loss_scaler.hpp"
#include "trainer/optim/optimizer.hpp"
#include "trainer/options.hpp"

namespace rondo::trainer {

template <class T>
constexpr DataType type_of() {
  return sizeof(T) == 8 ? DataType::kFloat64 : DataType::kFloat32;
}

/// One thread. T is the type of arithmetic.
template <class T>
class Weights {
 public:
  /// Compares all ranks' models; binds `model`, which is borrowed, as the communicator is.
  static Result<Weights> create(Model<T>& model, Communicator& communicator,
                                const Options& options);

  DistributedDataParallel& ddp() { return ddp_; }
  Optimizer<T>& optimizer() { return *optimizer_; }
  std::optional<LossScaler>& scaler() { return scaler_; }

  /// Keyed by the seed, on this rank only.
  void initialise_parameters(uint64_t seed);
  /// Every rank's parameters and buffers become rank 0's.
  Status replicate();

  /// What the loss is multiplied by.
  T loss_scale() const { return scaler_ ? static_cast<T>(scaler_->scale()) : T{1}; }

  struct Update {
    bool made;    // false: gradients that are no numbers; the loss scale has shrunk
    double norm;  // of all gradients together; only where it is clipped, else 0
  };
  /// Finishes the reduction of a step's gradients and updates the parameters: each bucket as soon
  /// as it is reduced, which fills the wait for the others, or all behind it. After a failure
  /// parameters are those of no step.
  Result<Update> finish(double rate, double max_norm);
  /// The first of the two: where nothing has to be known of all gradients before (their norm, or
  /// for fp16 whether they are finite), and without shards, whose order is another.
  bool updates_along(double max_norm) const {
    return !ddp_.is_sharded() && !scaler_ && max_norm == 0;
  }
  /// When that finish() had all gradients and, in the first case, had updated all buckets;
  /// CLOCK_MONOTONIC nanoseconds.
  int64_t reduced_ns() const { return reduced_ns_; }
  /// One step with the averaged gradients, the same bits on every rank. With shards each bucket's
  /// parameters start to travel as soon as they are updated, while the next bucket's are: last
  /// bucket first, which is what the next forward begins with.
  Result<Update> update(double rate, double max_norm);
  /// When the last step's update worked on each bucket; CLOCK_MONOTONIC nanoseconds.
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
          const Options& options);
  void bind();
  void round_copy(size_t begin, size_t end);
  void update_bucket(size_t bucket);
  void updated();
  std::vector<size_t> parameters() const;  // indices of tensors that are parameters

  Model<T>& model_;
  Communicator& communicator_;
  DistributedDataParallel ddp_;
  std::unique_ptr<Optimizer<T>> optimizer_;
  std::optional<LossScaler> scaler_;  // fp16
  const std::string dtype_;
  std::vector<Interval> bucket_updates_;
  int64_t reduced_ns_ = 0;
  Buffer<T> copy_;          // bf16, fp16: the parameters as they compute
  bool under_way_ = false;  // updated, await_parameters() not yet called
  bool cleared_ = true;     // all gradients are zeros
};

}  // namespace rondo::trainer
