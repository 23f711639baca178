// See step.hpp. The order of a step's collectives is the same on every rank: the headers, what the
// model's layers exchange, the loss, then the buckets in order.
#include "trainer/step/step.hpp"

#include <utility>

namespace rondo::trainer {

template <class T>
Result<StepResult> TrainingStep<T>::run(uint64_t number, double rate) {
  clock_.step_begins(number);
  const DdpHeader mine = samples_.header(model_.loss_terms());
  RONDO_TRY(ddp_.begin(mine));
  if (!relaid_ && ddp_.relayout().after_steps > 0) {  // begin() has changed buckets
    relaid_ = true;
    weights_.use_layout();
    clock_.use_layout();
  }
  const uint64_t micro_batches = samples_.micro_batches();
  // Headers travel after the last step's parameters, which the wait for samples hides.
  RONDO_TRY(read());
  // Ranks without samples, and layers that exchange something, read all headers before forward, so
  // that all ranks agree whether the step happens. The others go on at once.
  if (mine.loss_terms == 0 || options_.sync_batch_norm) {
    clock_.turns_to(StepPhase::kHeaders);
    const DdpStep all = RONDO_TRY(ddp_.headers());
    if (all.loss_terms == 0) return StepResult{.epoch_ended = true};
  }

  // All micro-batches but the last only add to the gradients: nothing travels.
  const Pass pass{.training = true, .seed = options_.seed, .step = number, .listener = &forward_};
  loss_.data()[kOwnLoss] = 0;
  adds_ = weights_.gradients_cleared();
  for (uint64_t micro = micro_batches; micro > 1; --micro) {
    const auto quiet = ddp_.no_sync();
    RONDO_TRY(forward(pass));
    RONDO_TRY(backward(pass));
    RONDO_TRY(read());
  }
  // During the last backward each bucket of gradients travels as soon as it is ready, and before
  // them the loss, for the report, with whether this rank is to stop.
  RONDO_TRY(forward(pass));
  loss_.data()[kOwnStop] = stop_.load() ? 1 : 0;
  Work loss_work = communicator_.all_reduce_async(&loss_.data()[kOwnLoss], &loss_.data()[kLoss], 2,
                                                  DataType::kFloat64);
  const Status passed = backward(pass);
  const Result<Update> updated =
      passed.ok() ? wait_and_update(weights_, rate, options_.clip, clock_) : passed;
  const Status summed = loss_work.wait();  // also after a failure: it uses loss_
  RONDO_TRY(updated.status());
  RONDO_TRY(summed);
  samples_.mark_done();

  const DdpStep all = ddp_.headers().value();
  const Update& made = updated.value();
  return StepResult{
      .samples = all.loss_terms / model_.loss_terms(),
      .epoch_ended = all.epoch_ended,
      .stops = loss_.data()[kStops] > 0,
      .report = StepReport{
          .number = number,
          .samples = all.loss_terms / model_.loss_terms(),
          .loss = loss_.data()[kLoss] / static_cast<double>(all.loss_terms),
          .update = made,
          .times = clock_.step_ends(loss_work.times(), made.made, weights_.bucket_updates())}};
}

/// Waits for the next micro-batch, then for the parameters.
template <class T>
Status TrainingStep<T>::read() {
  clock_.turns_to(StepPhase::kData);
  batch_ = RONDO_TRY(samples_.next());
  // Of an embedding's gradient only the rows of these tokens need to travel.
  for (size_t t = ddp_.tensors().size(); t-- > 0 && ddp_.tensors()[t].adds_to >= 0;) {
    ddp_.touches_rows(t, samples_.tokens_of(batch_));
  }
  return await_parameters();
}

/// Adds up the losses of the micro-batch.
template <class T>
Status TrainingStep<T>::forward(const Pass& pass) {
  clock_.turns_to(StepPhase::kForward);
  return model_.forward(batch_, pass, &loss_.data()[kOwnLoss]);
}

template <class T>
Status TrainingStep<T>::backward(const Pass& pass) {
  clock_.turns_to(StepPhase::kBackward);
  const bool adds = std::exchange(adds_, true);
  const double scale = gradient_factor_ * double{weights_.loss_scale()};
  return model_.backward(batch_, pass, scale, adds, clock_.beside(*this));
}

/// Ready: backward will not touch these elements again. The last gradient of a bucket starts the
/// bucket's all-reduce, and backward goes on.
template <class T>
void TrainingStep<T>::gradient_ready(int parameter, size_t count) {
  ddp_.gradient_ready(static_cast<size_t>(parameter), count);
}

template <class T>
void TrainingStep<T>::gradient_skipped(int parameter) {
  ddp_.gradient_skipped(static_cast<size_t>(parameter));
}

/// Each bucket is updated as soon as it is reduced, while later ones still travel and slower ranks
/// still compute. Where the update needs to know something of all gradients first, it comes at the
/// end.
template <class T>
Result<Update> wait_and_update(Weights<T>& weights, double rate, double max_norm,
                               StepClock& clock) {
  clock.turns_to(StepPhase::kWait);
  DistributedDataParallel& ddp = weights.ddp();
  if (!weights.updates_along(max_norm)) {
    RONDO_TRY(ddp.finish());
    clock.turns_to(StepPhase::kUpdate);
    return weights.update(rate, max_norm);
  }
  weights.begin_update(rate);
  RONDO_TRY(ddp.finish([&](size_t bucket) { weights.update_bucket(bucket); }));
  clock.turns_to(StepPhase::kUpdate);
  weights.end_update();
  return Update{.made = true, .norm = 0};
}

template <class T>
Status TrainingStep<T>::await_parameters() {
  clock_.turns_to(StepPhase::kParameters);
  const bool waited = RONDO_TRY(weights_.await_parameters());
  if (waited && ddp_.is_sharded()) clock_.gathered();
  return {};
}

template <class T>
TrainingStep<T>::TrainingStep(const Parts& parts)
    : options_(parts.options),
      communicator_(parts.communicator),
      model_(parts.model),
      weights_(parts.weights),
      ddp_(parts.weights.ddp()),
      samples_(parts.samples),
      clock_(parts.clock),
      forward_(parts.forward),
      stop_(parts.stop),
      gradient_factor_(parts.gradient_factor),
      loss_(kLossWords) {}

template class TrainingStep<float>;
template class TrainingStep<double>;
template Result<Update> wait_and_update(Weights<float>&, double, double, StepClock&);
template Result<Update> wait_and_update(Weights<double>&, double, double, StepClock&);

}  // namespace rondo::trainer
