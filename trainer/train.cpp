// See train.hpp. The order of a step's collectives is the same on every rank: the headers, what the
// model exchanges, the loss, then the buckets in order.
#include "trainer/train.hpp"

#include <spdlog/spdlog.h>

#include <new>
#include <optional>

#include "trainer/accounting.hpp"
#include "trainer/checkpointing.hpp"
#include "trainer/control.hpp"
#include "trainer/data/loader.hpp"
#include "trainer/evaluate.hpp"
#include "trainer/hash.hpp"
#include "trainer/interval.hpp"
#include "trainer/loop.hpp"
#include "trainer/measurements.hpp"
#include "trainer/random.hpp"
#include "trainer/rank_buffers.hpp"
#include "trainer/ranks.hpp"
#include "trainer/report.hpp"
#include "trainer/sabotage.hpp"
#include "trainer/setup.hpp"
#include "trainer/sharding.hpp"
#include "trainer/strategy_dp.hpp"
#include "trainer/summary.hpp"
#include "trainer/timeline.hpp"
#include "trainer/weights.hpp"

namespace rondo::trainer {
namespace {

double to_ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

/// What a run is made of before its first step. Borrowed.
template <class T>
struct Parts {
  LoopParts loop;
  Model<T>& model;
  Weights<T>& weights;
  const DistributedSampler& sampler;
  Loader& loader;
};

template <class T>
class Run : public TrainingLoop, private BackwardListener, private ForwardListener {
 public:
  explicit Run(const Parts<T>& parts)
      : TrainingLoop(parts.loop),
        model_(parts.model),
        weights_(parts.weights),
        sampler_(parts.sampler),
        loader_(parts.loader),
        loss_(2) {}

 private:
  Status start() override;
  Result<bool> step() override;
  Status end_step() override { return await_parameters(); }
  Status settle() override;
  Status save() override;
  Status write_weights() override {
    return save_weights(o_.save_weights, communicator_, model_, weights_);
  }
  Result<Evaluation> evaluate_model() override {
    return evaluate(o_, *validation_, model_, communicator_);
  }
  Status conclude(const End& end) override;
  RunFacts::Sizes sizes() const override;

  Status begin_parameters();
  Status plan_steps();
  Status open_outputs();
  DdpHeader header() const;
  Result<Work> pass();
  Result<Batch> fetch();
  void measure(const Work::Times& loss_times);
  void record(double loss, const typename Weights<T>::Update& made);
  void begin_epoch(uint64_t epoch);
  Status await_parameters();

  void forward_begins(int layer) override {
    timeline_.layer_begins(Timeline::Direction::kForward, layer);
  }
  void layer_begins(int layer) override {
    timeline_.layer_begins(Timeline::Direction::kBackward, layer);
  }
  void gradient_ready(int parameter, size_t count) override {
    measured_.gradient_ready(static_cast<size_t>(parameter), count, now_ns());
    ddp_.gradient_ready(static_cast<size_t>(parameter), count);
  }
  void gradient_skipped(int parameter) override {
    ddp_.gradient_skipped(static_cast<size_t>(parameter));
  }

  Model<T>& model_;
  Weights<T>& weights_;
  DistributedSampler sampler_;  // of this rank, at the beginning of what is left of the epoch
  Loader& loader_;
  Buffer<double> loss_;  // [0]: this rank's sum; [1]: all ranks' sum

  Timeline timeline_;
  Measurements measured_;
  ControlTimes control_;
  uint64_t taken_ = 0;  // of this rank's samples that sampler_ has left

  // The step under way.
  struct Clock {
    int64_t begin_ns = 0, begun_ns = 0, data_wait_ns = 0, backward_end_ns = 0, end_ns = 0;
    std::vector<Interval> waits = {};              // for gradients, behind backward
    int64_t parameter_wait_ns = 0;                 // for the last step's parameters, with --zero 1
    int64_t gather_ns = 0, exposed_gather_ns = 0;  // they were under way; of that, waited for
    int64_t header_wait_ns = 0;                    // in backward, for other ranks' headers
    int64_t comm_ns = 0, exposed_ns = 0;           // of gradients and parameters (UnderWay)
  };
  Clock clock_;
  uint64_t micro_batches_ = 0;
  uint64_t step_samples_ = 0;  // of all ranks
  uint64_t updated_step_ = 0;  // the last that changed parameters
};

template <class T>
Status Run<T>::start() {
  RONDO_RETURN_IF_ERROR(begin_parameters());
  RONDO_RETURN_IF_ERROR(plan_steps());
  plans_ = plan_buckets(communicator_, ddp_, wire_type(o_));
  RONDO_RETURN_IF_ERROR(open_outputs());
  const Result<ControlTimes> control =
      control_run<T>({o_, data_, sampler_, communicator_, model_, weights_});
  RONDO_RETURN_IF_ERROR(control.status());
  control_ = control.value();
  measured_ = Measurements(ddp_.layout().size());
  return {};
}

/// From a checkpoint, a file of weights, or the seed: rank 0's, and then everybody's.
template <class T>
Status Run<T>::begin_parameters() {
  if (reports()) weights_.initialise_parameters(o_.seed);
  Progress progress;
  if (o_.resume) {
    Result<Progress> restored = restore(o_, communicator_, data_.facts(), weights_);
    RONDO_RETURN_IF_ERROR(restored.status());
    progress = restored.value();
  }
  if (!progress.found && !o_.weights.empty()) {
    RONDO_RETURN_IF_ERROR(load_weights(o_, communicator_, model_, weights_));
  }
  RONDO_RETURN_IF_ERROR(weights_.replicate());
  set_buffers<T>(progress.buffers, ddp_);
  step_ = first_step_ = progress.step;
  epoch_ = progress.position.epoch;
  sampler_.set_epoch(epoch_, progress.position.consumed);
  loader_.start_epoch(progress.position);
  return {};
}

/// How many steps there will be: the rank with the most batches decides.
template <class T>
Status Run<T>::plan_steps() {
  DistributedSampler whole = sampler_;
  whole.set_epoch(0);
  const uint64_t samples = o_.drop_last ? whole.least() : whole.most();
  const uint64_t mine[] = {o_.drop_last ? samples / o_.batch : (samples + o_.batch - 1) / o_.batch,
                           loader_.batches_left()};
  const Result<std::vector<uint64_t>> all = gather_words(communicator_, mine);
  RONDO_RETURN_IF_ERROR(all.status());
  uint64_t most = 0, most_left = 0;
  for (uint64_t r = 0; r < ranks_; ++r) {
    most = std::max(most, all.value()[2 * r]);
    most_left = std::max(most_left, all.value()[2 * r + 1]);
  }
  steps_per_epoch_ = (most + o_.accum - 1) / o_.accum;
  last_step_ = o_.steps;
  expected_last_step_ = o_.steps;
  if (o_.steps == 0) {
    // Behind what was made, perhaps by another number of ranks, what is left of this epoch and the
    // others.
    expected_last_step_ = first_step_;
    if (epoch_ < o_.epochs) {
      expected_last_step_ +=
          (most_left + o_.accum - 1) / o_.accum + (o_.epochs - epoch_ - 1) * steps_per_epoch_;
    }
  }
  return plan_schedule();
}

template <class T>
Status Run<T>::open_outputs() {
  RONDO_RETURN_IF_ERROR(open_report());
  Result<Timeline> timeline =
      Timeline::open(o_.trace, communicator_.rank(), model_.layers(), collectives_of(ddp_));
  RONDO_RETURN_IF_ERROR(timeline.status());
  timeline_ = std::move(timeline).value();
  if (reports()) announce(facts());
  return {};
}

template <class T>
RunFacts::Sizes Run<T>::sizes() const {
  const size_t arrays = weights_.optimizer().state().size();
  return {.optimizer_bytes = arrays * ddp_.parameter_elements() * sizeof(T),
          .own_optimizer_bytes = arrays * own_elements(ddp_) * sizeof(T),
          .activation_bytes = model_.activation_bytes(),
          .gemm_operations = model_.gemm_operations(),
          .readers = loader_.workers()};
}

/// One step; false where no rank had samples left, so that only the epoch has ended.
template <class T>
Result<bool> Run<T>::step() {
  clock_ = {.begin_ns = now_ns()};
  // Where ranks may have different numbers of batches, or the model exchanges something in each
  // pass, every rank makes as many passes: so the exchanges keep their order.
  const bool talks = o_.sync_batch_norm;
  micro_batches_ = o_.join || talks ? o_.accum : std::min(o_.accum, loader_.batches_left());
  micro_batches_ = std::max<uint64_t>(micro_batches_, 1);
  const DdpHeader mine = header();
  RONDO_RETURN_IF_ERROR(ddp_.begin(mine));
  // The model must not wait for a rank that has nothing to say.
  if (mine.loss_terms == 0 || talks) {
    const Result<DdpStep> all = ddp_.headers();
    RONDO_RETURN_IF_ERROR(all.status());
    if (all.value().loss_terms == 0) {
      begin_epoch(epoch_ + 1);
      return false;
    }
  }
  clock_.begun_ns = now_ns();
  timeline_.step_begins(++step_);

  Result<Work> loss_work = pass();
  RONDO_RETURN_IF_ERROR(loss_work.status());
  clock_.backward_end_ns = now_ns();
  const Result<typename Weights<T>::Update> updated =
      weights_.finish(learning_rate(schedule_, step_), o_.clip);
  // Also after a failure: its buffer must not be in use. It went before the gradients.
  const Status loss_status = loss_work->wait();
  RONDO_RETURN_IF_ERROR(updated.status());
  RONDO_RETURN_IF_ERROR(loss_status);
  const typename Weights<T>::Update& made = updated.value();
  if (made.made) updated_step_ = step_;
  clock_.end_ns = now_ns();
  loader_.mark_done();
  measure(loss_work->times());

  const DdpStep all = ddp_.headers().value();
  step_samples_ = all.loss_terms / model_.loss_terms();
  const double loss = loss_.data()[1] / static_cast<double>(all.loss_terms);
  RONDO_RETURN_IF_ERROR(require_finite(loss));
  if (reports()) record(loss, made);
  if (all.epoch_ended) begin_epoch(epoch_ + 1);
  return true;
}

template <class T>
void Run<T>::begin_epoch(uint64_t epoch) {
  epoch_ = epoch;
  taken_ = 0;
  const uint64_t order = order_of_epoch(o_, epoch);
  sampler_.set_epoch(order);
  loader_.start_epoch({.epoch = order, .consumed = 0});
}

/// Of the samples that this step will take, known before they are read.
template <class T>
DdpHeader Run<T>::header() const {
  const uint64_t batches = std::min(micro_batches_, loader_.batches_left());
  const uint64_t left = sampler_.size() - std::min(taken_, sampler_.size());
  const uint64_t samples = std::min(batches * o_.batch, left);
  uint64_t hash = 0;
  // Where there are fewer samples than ranks, padding gives some the same one.
  const uint64_t told = sampler_.least() > 0 ? samples : 0;
  for (uint64_t i = 0; i < told; ++i) hash += mix(sampler_.index(taken_ + i));
  // Each rank's own data has the same numbers.
  if (o_.data.find("{rank}") != std::string::npos) hash = hash_bytes(&hash, 8, data_.hash());
  return {.loss_terms = samples * model_.loss_terms(),
          .end_of_data = batches == loader_.batches_left(),
          .epoch = sampler_.epoch(),
          .sample_hash = hash};
}

/// Forward and backward over the step's micro-batches, with the buckets' all-reduces started on the
/// way; returns the loss's.
template <class T>
Result<Work> Run<T>::pass() {
  const Pass pass{.training = true, .seed = o_.seed, .step = step_, .listener = this};
  loss_.data()[0] = 0;
  for (uint64_t micro = 0;; ++micro) {
    const Result<Batch> fetched = fetch();
    RONDO_RETURN_IF_ERROR(fetched.status());
    const Batch& batch = fetched.value();
    // With --zero 1 the last step's parameters may still be on their way, behind the samples.
    RONDO_RETURN_IF_ERROR(await_parameters());
    const int64_t forward_ns = now_ns();
    lag(o_, communicator_);
    const Result<double> loss = model_.forward(batch, pass);
    RONDO_RETURN_IF_ERROR(loss.status());
    loss_.data()[0] += loss.value();
    forward_begins(-1);
    timeline_.computed(Timeline::Kind::kForward, forward_ns, now_ns());

    const auto backward = [&] {
      measured_.backward_begins(now_ns());
      const bool adds = micro > 0 || weights_.gradients_cleared();
      const Status status = model_.backward(batch, pass, weights_.loss_scale(), adds, *this);
      layer_begins(-1);
      return status;
    };
    if (micro + 1 < micro_batches_) {
      const auto quiet = ddp_.no_sync();
      RONDO_RETURN_IF_ERROR(backward());
      continue;
    }
    Work loss_work =
        communicator_.all_reduce_async(&loss_.data()[0], &loss_.data()[1], 1, DataType::kFloat64);
    const Status status = backward();
    if (status.ok()) return loss_work;
    (void)loss_work.wait();
    return status;
  }
}

/// The last step's gathers belong to it in the trace, but to this one's times: nobody had waited
/// for them when the last line was printed.
template <class T>
Status Run<T>::await_parameters() {
  const int64_t begin_ns = now_ns();
  const Result<bool> waited = weights_.await_parameters();
  RONDO_RETURN_IF_ERROR(waited.status());
  if (!waited.value() || !ddp_.is_sharded()) return {};
  const int64_t end_ns = now_ns();
  timeline_.gathered(updated_step_, begin_ns, end_ns, ddp_.gather_times());
  UnderWay gathers({{begin_ns, end_ns}});
  for (size_t b = ddp_.layout().size(); b-- > 0;) gathers.add(ddp_.gather_times()[b]);
  measured_.gathered(ddp_.gather_times());
  clock_.parameter_wait_ns += end_ns - begin_ns;
  clock_.gather_ns += gathers.ns();
  clock_.exposed_gather_ns += gathers.exposed_ns();
  return {};
}

/// The next micro-batch, perhaps an empty one.
template <class T>
Result<Batch> Run<T>::fetch() {
  const int64_t begin_ns = now_ns();
  const Result<Loader::Loaded> loaded = loader_.next();
  RONDO_RETURN_IF_ERROR(loaded.status());
  const Batch& batch = loaded.value().batch;
  taken_ += batch.size;
  for (size_t t = ddp_.tensors().size(); t-- > 0 && ddp_.tensors()[t].adds_to >= 0;) {
    ddp_.touches_rows(t, {batch.tokens, batch.size * data_.shape().context});
  }
  const int64_t end_ns = now_ns();
  clock_.data_wait_ns += end_ns - begin_ns;
  timeline_.computed(Timeline::Kind::kData, begin_ns, end_ns);
  return batch;
}

/// The step's part of the timeline and of what the summary accounts for.
template <class T>
void Run<T>::measure(const Work::Times& loss_times) {
  const int64_t reduced_ns = weights_.reduced_ns();
  clock_.waits = {{clock_.backward_end_ns, reduced_ns}};
  timeline_.computed(Timeline::Kind::kOptimizer, reduced_ns, clock_.end_ns);
  if (updated_step_ == step_) {
    clock_.waits = without(clock_.waits.front(), weights_.bucket_updates());
    for (size_t b = 0; b < weights_.bucket_updates().size(); ++b) {
      const auto& [begin_ns, end_ns] = weights_.bucket_updates()[b];
      timeline_.updated(b, begin_ns, end_ns);
    }
  }
  for (const Interval& wait : clock_.waits) {
    timeline_.computed(Timeline::Kind::kWait, wait.begin_ns, wait.end_ns);
  }
  timeline_.communicated(ddp_.header_times(), loss_times, ddp_.times());
  // With overlap the first bucket's turn waits for the headers, and backward with it.
  const DdpBucketTimes& first = ddp_.times().front();
  if (first.work.issued_ns < clock_.backward_end_ns) {
    clock_.header_wait_ns = std::max<int64_t>(
        0, std::min(ddp_.header_times().ended_ns, first.work.issued_ns) - first.ready_ns);
  }
  UnderWay reductions(clock_.waits);
  for (const DdpBucketTimes& bucket : ddp_.times()) reductions.add(bucket.work);
  clock_.comm_ns = reductions.ns() + clock_.gather_ns;
  clock_.exposed_ns = reductions.exposed_ns() + clock_.exposed_gather_ns;
  measured_.step_ends({.begin_ns = clock_.begin_ns,
                       .end_ns = clock_.end_ns,
                       .data_wait_ns = clock_.data_wait_ns,
                       .begin_wait_ns = clock_.begun_ns - clock_.begin_ns,
                       .parameter_wait_ns = clock_.parameter_wait_ns,
                       .header_wait_ns = clock_.header_wait_ns,
                       .backward_end_ns = clock_.backward_end_ns,
                       .waits = clock_.waits,
                       .exposed_ns = clock_.exposed_ns},
                      ddp_.times());
}

/// Rank 0: one line of the report.
template <class T>
void Run<T>::record(double loss, const typename Weights<T>::Update& made) {
  const Clock& c = clock_;
  const int64_t step_ns = c.end_ns - c.begin_ns;
  const int64_t wait_ns =
      sum_ns(c.waits) + c.parameter_wait_ns + c.header_wait_ns + (c.begun_ns - c.begin_ns);
  report_->add(
      {.step = step_,
       .epoch = epoch_,
       .loss = loss,
       .lr = learning_rate(schedule_, step_),
       .samples_per_s = static_cast<double>(step_samples_) * 1e9 / static_cast<double>(step_ns),
       .step_ms = to_ms(step_ns),
       .compute_ms = to_ms(step_ns - wait_ns - c.data_wait_ns),
       .comm_ms = to_ms(c.comm_ns),
       .exposed_comm_ms = to_ms(c.exposed_ns),
       .other_wait_ms = to_ms(wait_ns - c.exposed_ns),
       .data_wait_ms = to_ms(c.data_wait_ns),
       .gradient_norm = made.norm,
       .skipped = !made.made});
}

template <class T>
Status Run<T>::settle() {
  RONDO_RETURN_IF_ERROR(await_parameters());
  return ddp_.broadcast_buffers();
}

template <class T>
Status Run<T>::save() {
  if (o_.checkpoint_dir.empty() || step_ == first_step_) return {};
  RONDO_RETURN_IF_ERROR(await_parameters());
  const Progress progress{
      .found = true, .step = step_, .position = loader_.position(), .buffers = {}};
  return checkpoint(o_, communicator_, progress, schedule_, data_.facts(), plans_, weights_);
}

template <class T>
Status Run<T>::conclude(const End& end) {
  for (uint64_t r = 1; r < ranks_; ++r) {
    if (end.hashes[r] == end.hashes[0]) continue;
    return Status(Code::kMismatch, "after the last step rank " + std::to_string(r) +
                                       " holds other parameters than rank 0: this is a bug");
  }
  RONDO_RETURN_IF_ERROR(timeline_.close(communicator_));
  const Result<AllRanks> all_ranks = compare_ranks(communicator_, measured_);
  RONDO_RETURN_IF_ERROR(all_ranks.status());
  if (!reports()) return {};
  const RunFacts known = facts();
  nlohmann::ordered_json summary = summarize(known, *report_, end.bytes_sent, end.hashes[0]);
  if (weights_.scaler()) {
    summary["skipped_steps"] = weights_.scaler()->state().skipped_steps;
    summary["loss_scale"] = weights_.scaler()->scale();
  }
  if (step_ > first_step_) {
    account({.facts = known,
             .communicator = communicator_,
             .direct = is_library_memory(ddp_.gradients(), 1),
             .updates_along = weights_.updates_along(o_.clip) && o_.layer_drop == 0,
             .measured = measured_,
             .control = control_,
             .all = all_ranks.value()},
            summary);
  }
  return report_->finish(std::move(summary));
}

template <class T>
Status train_with(const Options& options, const Dataset& data, const Dataset* validation,
                  Communicator& communicator, std::optional<Report>& report) try {
  RONDO_RETURN_IF_ERROR(require_agreement(communicator, options, data, validation));
  // What batch norm exchanges must not wait for gradients under way: a communicator of its own.
  std::optional<Communicator> statistics;
  if (options.sync_batch_norm) {
    Result<Communicator> own = communicator.duplicate();
    RONDO_RETURN_IF_ERROR(own.status());
    statistics = std::move(own).value();
  }
  const std::unique_ptr<Model<T>> model =
      make_model<T>(options, data.shape(), statistics ? &*statistics : nullptr);
  Result<Weights<T>> weights = Weights<T>::create(*model, communicator, options);
  RONDO_RETURN_IF_ERROR(weights.status());
  const bool own_data = options.data.find("{rank}") != std::string::npos;
  const DistributedSampler sampler(
      {.samples = data.samples(),
       .ranks = own_data ? 1 : static_cast<uint64_t>(communicator.size()),
       .rank = own_data ? 0 : rank_that_reads(options, communicator),
       .seed = options.seed,
       .tail = options.sampler_tail == "drop" ? DistributedSampler::Tail::kDrop
                                              : DistributedSampler::Tail::kPad});
  Result<std::unique_ptr<Loader>> loader = Loader::create(
      data, sampler,
      {.batch = options.batch, .workers = options.workers, .drop_last = options.drop_last});
  RONDO_RETURN_IF_ERROR(loader.status());
  Run<T> run({.loop = {.options = options,
                       .data = data,
                       .validation = validation,
                       .communicator = communicator,
                       .ddp = weights->ddp(),
                       .report = report},
              .model = *model,
              .weights = weights.value(),
              .sampler = sampler,
              .loader = **loader});
  const Status status = run.run();
  if (!status.ok()) {
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

}  // namespace

Status train(const Options& options, const Dataset& data, const Dataset* validation,
             Communicator& communicator) {
  const bool dp = options.strategy == "dp", wide = options.type() == DataType::kFloat64;
  const auto with = wide ? (dp ? train_dp<double> : train_with<double>)
                         : (dp ? train_dp<float> : train_with<float>);
  std::optional<Report> report;
  const Status status = with(options, data, validation, communicator, report);
  if (status.ok()) return status;
  communicator.abort(status.message());
  if (report) {
    report->abandon(status);
  } else if (communicator.rank() == 0) {
    (void)write_failure(options, status.to_string());
  }
  return status;
}

}  // namespace rondo::trainer
