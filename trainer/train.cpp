// See train.hpp.
#include "trainer/train.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "trainer/examples/strategy_dp.hpp"
#include "trainer/lessons/sabotage.hpp"
#include "trainer/optim/sharding.hpp"
#include "trainer/report/accounting.hpp"
#include "trainer/step/control.hpp"
#include "trainer/step/loop.hpp"
#include "trainer/step/ranks.hpp"
#include "trainer/step/setup.hpp"

namespace rondo::trainer {
namespace {

/// Compares the ranks; rank 0 ends its report.
template <class T>
Status conclude(Run<T>& run, const End& end, StepClock& clock, const ControlTimes& control) {
  for (uint64_t r = 1; r < run.ranks(); ++r) {
    if (end.hashes[r] == end.hashes[0]) continue;
    return Status(Code::kMismatch, "after the last step rank " + std::to_string(r) +
                                       " holds other parameters than rank 0: this is a bug");
  }
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

/// "32 KiB", "4.0 MiB".
std::string size_in_words(size_t bytes) {
  const auto size = static_cast<double>(bytes);
  return bytes < 1048576 ? fmt::format("{:.0f} KiB", size / 1024)
                         : fmt::format("{:.1f} MiB", size / 1048576);
}

/// "32 KiB to 8.2 MiB".
std::string sizes_of(const RunFacts& facts) {
  const auto [least, most] =
      std::minmax_element(facts.ddp.layout().begin(), facts.ddp.layout().end(),
                          [](const DdpBucket& a, const DdpBucket& b) { return a.count < b.count; });
  const std::string smallest = size_in_words(facts.bytes_of(least->count));
  const std::string largest = size_in_words(facts.bytes_of(most->count));
  return smallest == largest ? smallest : smallest + " to " + largest;
}

std::vector<size_t> counts_of(const std::vector<DdpBucket>& layout) {
  std::vector<size_t> counts;
  for (const DdpBucket& bucket : layout) counts.push_back(bucket.count);
  return counts;
}

/// --bucket-cap-mb auto has laid buckets of `before` elements out anew when step `number` began.
template <class T>
void note_relayout(Run<T>& run, uint64_t number, const std::vector<size_t>& before) {
  DistributedDataParallel& ddp = run.weights.ddp();
  run.plans = plan_buckets(run.communicator, ddp, run.options.wire_type());
  if (!run.reports()) return;
  run.report->count_from(number);
  const DdpRelayout& now = ddp.relayout();
  if (counts_of(ddp.layout()) == before) {
    spdlog::info(
        "buckets after step {}: {} of {}, as before: no other layout is predicted to expose less "
        "than these, {:.2f} ms per step",
        number - 1, now.buckets, sizes_of(run.facts()), now.exposed_ms);
    return;
  }
  spdlog::info(
      "buckets after step {}: {} of {} instead of {}, predicted to expose {:.2f} ms per step "
      "instead of {:.2f}",
      number - 1, now.buckets, sizes_of(run.facts()), now.buckets_before, now.exposed_ms,
      now.exposed_before_ms);
}

template <class T>
Status train_ddp(Run<T>& run) {
  const TrainOptions& o = run.options;
  DistributedDataParallel& ddp = run.weights.ddp();
  run.readers = run.samples.workers();
  RONDO_TRY(begin_run(run));
  run.plans = plan_buckets(run.communicator, ddp, o.wire_type());
  Timeline timeline = RONDO_TRY(
      Timeline::open(o.trace, run.communicator.rank(), run.model.layers(), collectives_of(ddp)));
  if (run.reports() && !run.survivors.has_lost()) announce(run.facts());
  const ControlTimes control = RONDO_TRY(control_run<T>(
      {o, run.data, run.samples.sampler(), run.communicator, run.model, run.weights}));

  StepClock clock(ddp, std::move(timeline));
  const int first_layer = static_cast<int>(run.model.layers().size()) - 1;
  const auto read_loss = [&run] {  // an all-reduce that no other rank makes: the run ends with it
    double loss = 0;
    (void)run.communicator.all_reduce(&loss, &loss, 1, DataType::kFloat64);
  };
  const bool reads = o.sabotage == "lone-read" && run.communicator.rank() == 0;
  LoneReader reader(first_layer, reads ? std::function<void()>(read_loss) : nullptr, clock);
  Straggler forward(
      o.sabotage == "straggler" && run.communicator.rank() + 1 == run.communicator.size(),
      first_layer, reader);
  TrainingStep<T> step({.options = o,
                        .communicator = run.communicator,
                        .model = run.model,
                        .weights = run.weights,
                        .samples = run.samples,
                        .clock = clock,
                        .forward = forward,
                        .stop = run.stop});
  bool relaid = false;
  const std::vector<size_t> before = counts_of(ddp.layout());
  const auto make_step = [&](uint64_t number, double rate) {
    Result<StepResult> made = step.run(number, rate_of(o, rate, run.communicator.size()));
    if (made.ok() && !std::exchange(relaid, ddp.relayout().after_steps > 0) && relaid) {
      note_relayout(run, number, before);
    }
    return made;
  };
  const Result<End> end = make_steps(run, {.step = make_step,
                                           .await = [&] { return step.await_parameters(); },
                                           .settle = [&] { return step.await_parameters(); }});
  RONDO_TRY(end.status());
  return conclude(run, end.value(), clock, control);
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
  const bool dp = options.strategy == "dp";
  RankSamples samples =
      RONDO_TRY(RankSamples::create(options, data, static_cast<uint64_t>(communicator.size()),
                                    static_cast<uint64_t>(communicator.rank()),
                                    dp ? dp_workers(options, communicator) : options.workers));
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
  const Status status = dp ? train_dp(run) : train_ddp(run);
  if (!status.ok() && !can_go_on(options, status)) {
    // Before anything is destroyed that others may be waiting for.
    communicator.abort(status.message());
    if (statistics) statistics->abort(status.message());
  }
  return status;
} catch (const std::bad_alloc&) {
  return Status(Code::kResourceExhausted,
                "not enough memory for --layers " + std::to_string(options.layers) + " --width " +
                    std::to_string(options.width) + " --batch " + std::to_string(options.batch));
}

/// As often as ranks die: once more, on those that are left.
template <class T>
Status train_and_go_on(const TrainOptions& options, const Dataset& data, const Dataset* validation,
                       Communicator& communicator, std::optional<Report>& report,
                       const std::atomic<bool>& stop, bool& is_left_out) {
  Survivors survivors(communicator.size());
  AgreedState<T> agreed;
  while (true) {
    const Status status =
        train_with<T>(options, data, validation, communicator, report, stop, survivors, agreed);
    if (!can_go_on(options, status)) return status;
    const Status met = survivors.shrink(communicator, status, options.min_ranks);
    is_left_out = met.code() == Code::kTimeout;
    RONDO_TRY(met);
  }
}

}  // namespace

Status train(const TrainOptions& options, const Dataset& data, const Dataset* validation,
             Communicator& communicator, const std::atomic<bool>& stop, bool* is_left_out) {
  const auto with =
      options.type() == DataType::kFloat64 ? train_and_go_on<double> : train_and_go_on<float>;
  std::optional<Report> report;
  bool left_out = false;
  const Status status = with(options, data, validation, communicator, report, stop, left_out);
  if (is_left_out != nullptr) *is_left_out = left_out;
  if (status.ok()) return status;
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
