// See train.hpp.
#include "trainer/train.hpp"

#include <new>
#include <optional>
#include <utility>

#include "trainer/examples/strategy_dp.hpp"
#include "trainer/lessons/sabotage.hpp"
#include "trainer/optim/sharding.hpp"
#include "trainer/report/accounting.hpp"
#include "trainer/step/buckets.hpp"
#include "trainer/step/control.hpp"
#include "trainer/step/loop.hpp"
#include "trainer/step/ranks.hpp"
#include "trainer/step/setup.hpp"

namespace rondo::trainer {
namespace {

/// Compares the ranks; rank 0 ends its report.
template <class T>
Status conclude(Run<T>& run, const End& end, StepClock& clock, const ControlTimes& control) {
  RONDO_TRY(require_same_parameters(end));
  RONDO_TRY(clock.close(run.communicator));
  const AllRanks all_ranks = RONDO_TRY(compare_ranks(run.communicator, clock.measured()));
  if (!run.reports()) return run.options.elastic ? run.communicator.barrier() : Status();
  const RunFacts facts = run.facts();
  nlohmann::ordered_json summary = summarize(facts, *run.report, end.bytes_sent, end.hashes[0]);
  if (run.weights.scaler()) {
    summary["skipped_steps"] = run.weights.scaler()->state().skipped_steps;
    summary["loss_scale"] = run.weights.scaler()->scale();
  }
  if (run.step > run.first_step) {
    account({.facts = facts,
             .communicator = run.communicator,
             .direct = is_library_memory(run.weights.ddp().gradients(), 1),
             .updates_along =
                 run.weights.updates_along(run.options.clip) && run.options.layer_drop == 0,
             .measured = clock.measured(),
             .control = control,
             .all = all_ranks},
            summary);
  }
  RONDO_TRY(run.report->finish(std::move(summary)));
  // The others wait, to report in rank 0's place if it dies before this. Later deaths do not matter.
  if (run.options.elastic) (void)run.communicator.barrier();
  return {};
}

template <class T>
Status train_ddp(Run<T>& run) {
  const TrainOptions& o = run.options;
  DistributedDataParallel& ddp = run.weights.ddp();
  run.readers = run.samples.workers();
  RONDO_TRY(begin_run(run));
  RONDO_TRY(begin_buckets(run));
  Timeline timeline = RONDO_TRY(
      Timeline::open(o.trace, run.communicator.rank(), run.model.layers(), collectives_of(ddp)));
  if (run.reports() && !run.survivors.has_lost()) announce(run.facts());
  const ControlTimes control = RONDO_TRY(control_run<T>(
      {o, run.data, run.samples.sampler(), run.communicator, run.model, run.weights}));

  StepClock clock(ddp, std::move(timeline));
  BrokenForward forward(o, run.communicator, run.model.layers().size(), nullptr, clock);
  TrainingStep<T> step({.options = o,
                        .communicator = run.communicator,
                        .model = run.model,
                        .weights = run.weights,
                        .samples = run.samples,
                        .clock = clock,
                        .forward = forward,
                        .stop = run.stop,
                        .gradient_factor = gradient_factor(o, run.communicator.size())});
  BucketWatch<T> watch(run);
  const auto make_step = [&](uint64_t number, double rate) -> Result<StepResult> {
    const StepResult made = RONDO_TRY(step.run(number, rate));
    RONDO_TRY(watch.look(number));
    return made;
  };
  const Result<End> end = make_steps(run, {.step = make_step,
                                           .await = [&] { return step.await_parameters(); },
                                           .settle = [&] { return step.await_parameters(); }});
  RONDO_TRY(end.status());
  return conclude(run, end.value(), clock, control);
}

/// A rank's.
Result<RankSamples> make_samples(const TrainOptions& options, const Dataset& data,
                                 const Communicator& communicator) {
  return RankSamples::create(
      options, data, static_cast<uint64_t>(communicator.size()),
      static_cast<uint64_t>(communicator.rank()),
      options.strategy == "dp" ? dp_workers(options, communicator) : options.workers);
}

Status out_of_memory(const TrainOptions& options) {
  return Status(Code::kResourceExhausted,
                "not enough memory for --layers " + std::to_string(options.layers) + " --width " +
                    std::to_string(options.width) + " --batch " + std::to_string(options.batch));
}

bool can_go_on(const TrainOptions& options, const Status& status) {
  return options.elastic && status.code() == Code::kPeerDied;
}

template <class T>
Status train_with(const TrainOptions& options, const Dataset& data, const Dataset* validation,
                  Communicator& communicator, std::optional<Report>& report,
                  const std::atomic<bool>& stop, Survivors& survivors, AgreedState<T>& agreed) try {
  RONDO_TRY(require_agreement(communicator, options, data, validation));
  // What batch norm exchanges must not wait for gradients under way: a communicator of its own.
  std::optional<Communicator> statistics;
  if (options.sync_batch_norm) {
    statistics = RONDO_TRY(communicator.duplicate());
  }
  const std::unique_ptr<Model<T>> model =
      make_model<T>(options, data.shape(), statistics ? &*statistics : nullptr);
  Weights<T> weights = RONDO_TRY(Weights<T>::create(*model, communicator, options));
  RankSamples samples = RONDO_TRY(make_samples(options, data, communicator));
  Run<T> run{.options = options,
             .data = data,
             .validation = validation,
             .communicator = communicator,
             .model = *model,
             .weights = weights,
             .samples = samples,
             .report = report,
             .stop = stop,
             .survivors = survivors,
             .agreed = options.elastic && options.zero == 0 ? &agreed : nullptr};
  const Status status = options.strategy == "dp" ? train_dp(run) : train_ddp(run);
  if (!status.ok() && !can_go_on(options, status)) {
    // Before anything is destroyed that others may be waiting for.
    communicator.abort(status.message());
    if (statistics) statistics->abort(status.message());
  }
  return status;
} catch (const std::bad_alloc&) {
  return out_of_memory(options);
}

/// Of the weights that mirror a device's: fp32, whole on every rank, without communication.
TrainOptions mirror_options(const TrainOptions& options) {
  TrainOptions mirror = options;
  mirror.device = "cpu";
  mirror.dtype = "fp32";
  mirror.zero = 0;
  return mirror;
}

/// On the rank's GPU.
Status train_on(RankDevice& device, const TrainOptions& options, const Dataset& data,
                const Dataset* validation, Communicator& communicator,
                std::optional<Report>& report, const std::atomic<bool>& stop) try {
  RONDO_TRY(require_agreement(communicator, options, data, validation));
  const auto trainer = RONDO_TRY(device.open(options, data.shape(), device, communicator));
  Weights<float> mirror =
      RONDO_TRY(Weights<float>::create(trainer->model(), communicator, mirror_options(options)));
  if (options.dtype == "fp16") mirror.scaler().emplace();  // the device's, between steps
  RankSamples samples = RONDO_TRY(make_samples(options, data, communicator));
  Survivors survivors(communicator.size());
  Run<float> run{.options = options,
                 .data = data,
                 .validation = validation,
                 .communicator = communicator,
                 .model = trainer->model(),
                 .weights = mirror,
                 .samples = samples,
                 .report = report,
                 .stop = stop,
                 .survivors = survivors};
  if (options.strategy != "dp") return trainer->train(run);
  return trainer->train_replica(
      run, [](Run<float>& begun, Replica& replica) { return train_dp(begun, replica); });
} catch (const std::bad_alloc&) {
  return out_of_memory(options);
}

/// As often as ranks die: once more, on those that are left.
template <class T>
Status train_and_go_on(const TrainOptions& options, const Dataset& data, const Dataset* validation,
                       Communicator& communicator, std::optional<Report>& report,
                       const std::atomic<bool>& stop, bool& is_left_out) {
  Survivors survivors(communicator.size());
  AgreedState<T> agreed;
  TrainOptions now = options;
  while (true) {
    const Status status =
        train_with<T>(now, data, validation, communicator, report, stop, survivors, agreed);
    if (!can_go_on(options, status)) return status;
    const Status met = survivors.shrink(communicator, status, options.min_ranks);
    is_left_out = met.code() == Code::kTimeout;
    RONDO_TRY(met);
    now.control_steps = 0;  // another number of ranks has other times than the steps so far
  }
}

}  // namespace

Status train(const TrainOptions& given, const Dataset& data, const Dataset* validation,
             Communicator& communicator, const std::atomic<bool>& stop, bool* is_left_out,
             RankDevice* device) {
  TrainOptions options = given;
  options.control_steps = control_steps_of(given, data.samples(), communicator.size());
  const auto with =
      options.type() == DataType::kFloat64 ? train_and_go_on<double> : train_and_go_on<float>;
  std::optional<Report> report;
  bool left_out = false;
  const Status status =
      device != nullptr ? train_on(*device, options, data, validation, communicator, report, stop)
                        : with(options, data, validation, communicator, report, stop, left_out);
  if (is_left_out != nullptr) *is_left_out = left_out;
  if (status.ok()) return status;
  if (device != nullptr) device->communicator.abort(status.message());
  communicator.abort(status.message());
  if (left_out) {
    if (report) report->leave();
  } else if (report) {
    report->abandon(status);
  } else if (communicator.rank() == 0) {
    (void)write_failure(options, status.to_string());
  }
  return status;
}

}  // namespace rondo::trainer
