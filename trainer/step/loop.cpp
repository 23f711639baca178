// See loop.hpp.
#include "trainer/step/loop.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "trainer/base/hash.hpp"
#include "trainer/checkpoint/checkpointing.hpp"
#include "trainer/checkpoint/rank_buffers.hpp"
#include "trainer/optim/sharding.hpp"
#include "trainer/step/buckets.hpp"
#include "trainer/step/evaluate.hpp"
#include "trainer/step/ranks.hpp"
#include "trainer/step/setup.hpp"

namespace rondo::trainer {
namespace {

/// Of a run that began with no checkpoint, after steps.
constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

/// Collective, after deaths, where no state was kept: whether any rank has made a step.
template <class T>
Result<bool> had_begun(Run<T>& run) {
  uint64_t steps = run.report && run.report->last() != nullptr ? 1 : 0;
  RONDO_TRY(run.communicator.all_reduce(&steps, &steps, 1, DataType::kUint64, ReduceOp::kMax));
  return steps > 0;
}

/// Where a run goes on, or begins: from the agreed state, or from a checkpoint.
template <class T>
Result<TrainingProgress> find_progress(Run<T>& run, ReportHistory& history) {
  const TrainOptions& o = run.options;
  TrainingProgress progress;
  if (run.survivors.has_lost() && run.report) history = run.report->history();
  if (run.survivors.has_lost() && run.agreed != nullptr) {
    progress = RONDO_TRY(run.agreed->take(run.communicator, run.weights, history));
    run.begun = !history.steps.empty();
    run.loaded = kNone;
    if (progress.found) return progress;
  } else if (run.survivors.has_lost()) {
    run.begun = RONDO_TRY(had_begun(run));
  }
  if (o.resume || run.begun) {
    progress = RONDO_TRY(restore(o, run.communicator, run.data.facts(), run.weights));
  }
  run.loaded = progress.step;
  // If ranks have died, Survivors::go_on() reports the new global batch.
  if (!run.survivors.has_lost()) run.origin = std::move(progress.origin);
  return progress;
}

/// Rank 0's, and then those of all ranks.
template <class T>
Status begin_parameters(Run<T>& run, ReportHistory& history) {
  const TrainOptions& o = run.options;
  if (run.reports()) run.weights.initialise_parameters(o.seed);
  const TrainingProgress progress = RONDO_TRY(find_progress(run, history));
  if (!progress.found && !o.weights.empty()) {
    RONDO_TRY(load_weights(o, run.communicator, run.model, run.weights));
  }
  RONDO_TRY(run.weights.replicate());
  set_buffers<T>(progress.buffers, run.weights.ddp());
  run.step = run.first_step = progress.step;
  run.samples.start(progress.position);
  return {};
}

/// How many steps there will be: the rank with the most batches decides.
template <class T>
Status plan_steps(Run<T>& run) {
  const TrainOptions& o = run.options;
  const uint64_t mine[] = {run.samples.batches_per_epoch(), run.samples.batches_left()};
  const std::vector<uint64_t> all = RONDO_TRY(gather_words(run.communicator, mine));
  uint64_t most = 0, most_left = 0;
  for (uint64_t r = 0; r < run.ranks(); ++r) {
    most = std::max(most, all[2 * r]);
    most_left = std::max(most_left, all[2 * r + 1]);
  }
  run.steps_per_epoch = (most + o.accum - 1) / o.accum;
  run.last_step = o.steps;
  if (o.steps == 0) {
    // After the steps that were made, perhaps by another number of ranks: what is left of this
    // epoch, and the others.
    run.last_step = run.first_step;
    if (run.samples.epoch() < o.epochs) {
      run.last_step += (most_left + o.accum - 1) / o.accum +
                       (o.epochs - run.samples.epoch() - 1) * run.steps_per_epoch;
    }
  }
  if (run.steps_per_epoch == 0) {
    return Status(Code::kDataError,
                  fmt::format("data '{}': has {} samples, fewer than {} needs for one batch "
                              "of {} on each rank",
                              run.data.facts().path, run.data.samples(),
                              o.drop_last ? "--drop-last" : "--sampler-tail drop", o.batch));
  }
  run.schedule = schedule_options(o, o.batch * o.accum * run.ranks(), run.last_step);
  return check(run.schedule);
}

/// Also tries what is to be written at the end.
template <class T>
Status open_report(Run<T>& run, ReportHistory history) {
  const TrainOptions& o = run.options;
  if (run.survivors.has_lost()) {
    RONDO_TRY(run.survivors.go_on(run.step, o.batch * o.accum * run.ranks(), run.reports()));
  }
  if (!run.reports() && !o.elastic) return {};
  if (run.reports() && !run.begun) RONDO_TRY(try_outputs(o));
  run.report = RONDO_TRY(Report::open(o, {.first = run.first_step, .last = run.last_step},
                                      config_of(run.facts()), std::move(history), run.reports()));
  return {};
}

/// Every rank has made the step, or will: from here the run can go on when some die.
template <class T>
Status agree(Run<T>& run) {
  if (run.agreed == nullptr) return {};
  const TrainingProgress progress{
      .found = true, .step = run.step, .position = run.samples.position(), .buffers = {}};
  const bool shares = !run.options.no_broadcast_buffers && !run.options.sync_batch_norm;
  return run.agreed->keep(progress, run.communicator, shares, run.weights);
}

/// By epochs the last step is only expected.
template <class T>
bool is_complete(const Run<T>& run) {
  const TrainOptions& o = run.options;
  return o.steps != 0 ? run.step >= o.steps : run.samples.epoch() >= o.epochs;
}

template <class T>
bool has_ended(const Run<T>& run) {
  return run.stopped || is_complete(run);
}

/// Takes what a step has made into account; rank 0 reports it.
template <class T>
Status record(Run<T>& run, const StepReport& made) {
  RONDO_CHECK(!run.unreported.empty() && run.unreported.front().number == made.number);
  const typename Run<T>::Made step = run.unreported.front();
  run.unreported.pop_front();
  if (!std::isfinite(made.loss)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("the loss became {} in step {}: lower --lr, now {}",
                              std::isnan(made.loss) ? std::abs(made.loss) : made.loss,  // no "-nan"
                              step.number, run.options.lr));
  }
  if (!run.report) return {};
  const double samples_per_s = static_cast<double>(made.samples) * 1e3 / made.times.step_ms;
  const auto tokens = static_cast<double>(run.options.tokens_per_sample());
  run.report->add({.step = step.number,
                   .epoch = step.epoch,
                   .loss = made.loss,
                   .lr = step.rate,
                   .samples_per_s = samples_per_s,
                   .tokens_per_s = tokens * samples_per_s,
                   .times = made.times,
                   .gradient_norm = made.update.norm,
                   .skipped = !made.update.made});
  return run.report->written();
}

/// Until every step that was made is reported, and nothing of them is under way. The report first:
/// it knows of ranks that have died.
template <class T>
Status await(Run<T>& run, const Strategy& strategy) {
  if (strategy.last_report) {
    const std::optional<StepReport> last = RONDO_TRY(strategy.last_report());
    if (last) RONDO_TRY(record(run, *last));
  }
  return strategy.await();
}

template <class T>
Status save(Run<T>& run, const Strategy& strategy) {
  if (run.options.checkpoint_dir.empty() || run.step == run.loaded) return {};
  RONDO_TRY(strategy.await());
  if (strategy.fetch) RONDO_TRY(strategy.fetch());
  const TrainingProgress progress{
      .found = true, .step = run.step, .position = run.samples.position(), .buffers = {}};
  return checkpoint(run.options, run.communicator, progress, run.schedule, run.data.facts(),
                    buckets_of(run.ddp(), run.plans), run.weights);
}

template <class T>
Status validate(Run<T>& run, const Strategy& strategy) {
  if (run.validation == nullptr) return {};
  RONDO_TRY(strategy.settle());
  const Evaluation result =
      RONDO_TRY(evaluate(run.options, *run.validation, run.model, run.communicator));
  if (!run.report) return {};
  run.report->add_validation({.step = run.step,
                              .loss = result.loss,
                              .accuracy = result.accuracy,
                              .samples = result.samples});
  return run.report->written();
}

/// `sent`: by this rank since the first step began.
template <class T>
Result<End> compare(Run<T>& run, uint64_t sent) {
  DistributedDataParallel& ddp = run.weights.ddp();
  const uint64_t steps = run.step - run.first_step;
  const size_t bytes = ddp.parameter_elements() * size_of(ddp.type());
  const uint64_t mine[] = {hash_bytes(ddp.parameters(), bytes), steps == 0 ? 0 : sent / steps};
  const std::vector<uint64_t> all = RONDO_TRY(gather_words(run.communicator, mine));
  End end;
  for (uint64_t r = 0; r < run.ranks(); ++r) {
    end.hashes.push_back(all[2 * r]);
    end.bytes_sent.push_back(all[2 * r + 1]);
  }
  return end;
}

}  // namespace

template <class T>
RunFacts Run<T>::facts() const {
  const size_t arrays = weights.optimizer().state().size();
  return {.options = options,
          .data = data.facts(),
          .ddp = ddp(),
          .plans = plans,
          .ranks = ranks(),
          .cores = cores,
          .steps_per_epoch = steps_per_epoch,
          .last_step = last_step,
          .global_batch = options.batch * options.accum * ranks(),
          .first_step = first_step,
          .interrupted = stopped && step < last_step,
          .deaths = survivors.deaths(),
          .sizes = {.optimizer_bytes = arrays * ddp().parameter_elements() * sizeof(T),
                    .own_optimizer_bytes = arrays * own_elements(ddp()) * sizeof(T),
                    .activation_bytes = model.activation_bytes(),
                    .gemm_operations = model.gemm_operations(),
                    .readers = readers}};
}

template <class T>
uint64_t Run<T>::bytes_sent() const {
  return communicator.stats().bytes_sent + uncounted_bytes +
         (on_device != nullptr ? on_device->stats().bytes_sent : 0);
}

Status require_same_parameters(const End& end) {
  for (size_t r = 1; r < end.hashes.size(); ++r) {
    if (end.hashes[r] == end.hashes[0]) continue;
    return Status(Code::kMismatch, "after the last step rank " + std::to_string(r) +
                                       " holds other parameters than rank 0: this is a bug");
  }
  return {};
}

template <class T>
Status begin_run(Run<T>& run) {
  ReportHistory history;
  RONDO_TRY(begin_parameters(run, history));
  RONDO_TRY(plan_steps(run));
  run.cores = RONDO_TRY(count_cores(run.communicator));
  return open_report(run, std::move(history));
}

template <class T>
Result<End> make_steps(Run<T>& run, const Strategy& strategy) {
  const TrainOptions& o = run.options;
  RONDO_TRY(agree(run));
  uint64_t sent_before = run.bytes_sent();
  if (run.reports() && has_ended(run) && !run.survivors.has_lost()) {
    spdlog::warn(
        "nothing to do: '{}' holds step {}, and {} ends there", o.checkpoint_dir, run.step,
        o.steps != 0 ? fmt::format("--steps {}", o.steps) : fmt::format("--epochs {}", o.epochs));
  }
  const auto is_due = [&](uint64_t every) { return every != 0 && run.step % every == 0; };
  // What comes between two steps. What it sends is no step's.
  const auto pause = [&]() -> Status {
    const bool saves = is_due(o.checkpoint_every), validates = is_due(o.validate_every);
    if (has_ended(run) || (!saves && !validates)) return {};
    RONDO_TRY(await(run, strategy));
    const uint64_t steps_sent = run.bytes_sent();
    if (saves) {
      RONDO_TRY(settle_buckets(run));
      RONDO_TRY(save(run, strategy));
    }
    if (validates) RONDO_TRY(validate(run, strategy));
    sent_before += run.bytes_sent() - steps_sent;
    return {};
  };
  // What ranks died in, perhaps.
  const bool repeats = run.survivors.has_lost() && run.report->last() != nullptr &&
                       run.report->last()->step == run.step;
  if (repeats) RONDO_TRY(pause());
  while (!has_ended(run)) {
    const double rate = learning_rate(run.schedule, run.step + 1);
    const StepResult made = RONDO_TRY(strategy.step(run.step + 1, rate));
    const uint64_t steps_sent = run.bytes_sent();
    const uint64_t epoch = run.samples.epoch();
    if (made.samples > 0) ++run.step;
    if (made.epoch_ended) run.samples.begin_epoch(epoch + 1);
    RONDO_TRY(agree(run));
    // With --zero 1, which has no agreed state, parameters of the step still travel.
    if (run.agreed != nullptr) sent_before += run.bytes_sent() - steps_sent;
    if (made.samples > 0) run.unreported.push_back({run.step, epoch, rate});
    if (made.report) RONDO_TRY(record(run, *made.report));
    run.stopped = made.stops && !is_complete(run);  // after the last step there is nothing to stop
    if (made.samples > 0) RONDO_TRY(pause());
  }
  RONDO_TRY(await(run, strategy));
  const uint64_t sent = run.bytes_sent() - sent_before;
  RONDO_TRY(save(run, strategy));
  if (strategy.fetch) RONDO_TRY(strategy.fetch());
  if (run.stopped) return compare(run, sent);
  RONDO_TRY(validate(run, strategy));
  if (!o.save_weights.empty()) {
    RONDO_TRY(save_weights(o.save_weights, run.communicator, run.model, run.weights));
  }
  return compare(run, sent);
}

template struct Run<float>;
template struct Run<double>;
template Status begin_run(Run<float>&);
template Status begin_run(Run<double>&);
template Result<End> make_steps(Run<float>&, const Strategy&);
template Result<End> make_steps(Run<double>&, const Strategy&);

}  // namespace rondo::trainer
