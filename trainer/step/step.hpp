// One step of data parallel training, as every rank makes it: forward, backward, ready, wait,
// update. step.cpp is to be read first; what it costs is noted beside it, by clock.hpp.
#pragma once

#include <atomic>
#include <optional>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/base/buffer.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/weights.hpp"
#include "trainer/step/clock.hpp"
#include "trainer/step/samples.hpp"

namespace rondo::trainer {

/// What a step has found out, the same on every rank but for the times.
struct StepReport {
  uint64_t number = 0;   // of the step
  uint64_t samples = 0;  // of all ranks
  double loss = 0;       // mean over the global batch, before the update
  Update update = {};
  StepTimes times = {};
};

/// What the run needs to know before the next step, the same on every rank.
struct StepResult {
  uint64_t samples = 0;      // of all ranks; 0: none had any, so only the epoch has ended
  bool epoch_ended = false;  // no rank has another batch
  bool stops = false;        // some rank is to stop, so all do after this step
  /// Of this step; of an earlier one, or of none, where results arrive late (on a device).
  std::optional<StepReport> report = {};
};

/// One thread. T is the type of arithmetic.
template <class T>
class TrainingStep : private BackwardListener {
 public:
  /// Borrowed. `forward` hears of each layer that a forward pass turns to.
  struct Parts {
    const TrainOptions& options;
    Communicator& communicator;
    Model<T>& model;
    Weights<T>& weights;
    RankSamples& samples;
    StepClock& clock;
    ForwardListener& forward;
    const std::atomic<bool>& stop;  // set by whoever wants the run to end
    double gradient_factor = 1;     // of the averaged gradients; not 1: a mistake on purpose
  };
  explicit TrainingStep(const Parts& parts);

  /// Makes step `number` at this learning rate. After a failure parameters are those of no step.
  Result<StepResult> run(uint64_t number, double rate);
  /// With --zero 1 the parameters of the last step may still be under way: until this they must not
  /// be used.
  Status await_parameters();

 private:
  Status read();
  Status forward(const Pass& pass);
  Status backward(const Pass& pass);
  void layer_begins(int /*layer*/) override {}
  void gradient_ready(int parameter, size_t count) override;
  void gradient_skipped(int parameter) override;

  const TrainOptions& options_;
  Communicator& communicator_;
  Model<T>& model_;
  Weights<T>& weights_;
  DistributedDataParallel& ddp_;
  RankSamples& samples_;
  StepClock& clock_;
  ForwardListener& forward_;
  const std::atomic<bool>& stop_;
  const double gradient_factor_;
  Batch batch_ = {};     // the micro-batch under way
  bool relaid_ = false;  // buckets are other ones (--bucket-cap-mb auto)
  bool adds_ = false;    // its backward adds to the gradients; else it writes them
  // This rank's sum, and 1 where it is to stop; the same summed over all ranks.
  enum LossWord : size_t { kOwnLoss, kOwnStop, kLoss, kStops, kLossWords };
  Buffer<double> loss_;
};

/// Waits for the step's gradients and updates the parameters with them.
template <class T>
Result<Update> wait_and_update(Weights<T>& weights, double rate, double max_norm, StepClock& clock);

}  // namespace rondo::trainer
