// See train.hpp. The order of a step's collectives is the same on every rank: the loss, then the
// buckets in order.
#include "trainer/train.hpp"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cmath>
#include <new>
#include <optional>

#include "trainer/buckets.hpp"
#include "trainer/buffer.hpp"
#include "trainer/hash.hpp"
#include "trainer/mlp.hpp"
#include "trainer/ranks.hpp"
#include "trainer/reducer.hpp"
#include "trainer/report.hpp"
#include "trainer/sampler.hpp"
#include "trainer/sgd.hpp"
#include "trainer/summary.hpp"
#include "trainer/trace.hpp"

namespace rondo::trainer {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
double to_ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

/// Rows of the trace.
enum Lane : size_t { kComputeLane, kLossLane, kFirstBucketLane };

template <class T>
class Run : private BackwardListener {
 public:
  Run(const Options& options, const Corpus& corpus, Communicator& communicator);
  Status run();
  /// After run() has failed: rank 0's document of what there was until then.
  void abandon(const Status& why) {
    if (report_) report_->abandon(why);
  }

 private:
  Status start();
  Status step(uint64_t number);
  Status finish();

  Work pass();
  void fetch(uint64_t micro_batch);
  void record(double loss, const Work::Times& loss_times);
  void layer_begins(int layer) override;
  void gradient_ready(int parameter) override;
  void trace_communication(const Work::Times& loss);

  bool reports() const { return communicator_.rank() == 0; }
  RunFacts facts() const;
  Status open_outputs();

  const Options& options_;
  const Corpus& corpus_;
  Communicator& communicator_;
  const uint64_t ranks_;
  const SampleOrder order_;
  const uint64_t last_step_;

  std::unique_ptr<Model<T>> model_;
  const BucketLayout layout_;
  Buffer<T> parameters_, gradients_;  // flat, both as layout_ says
  Reducer reducer_;
  Sgd<T> optimizer_;
  std::vector<uint8_t> inputs_, targets_;
  Buffer<double> loss_;  // [0]: this rank's sum; [1]: all ranks' sum

  std::vector<Plan> plans_;         // of each bucket
  std::optional<Report> report_;    // rank 0 only
  Trace trace_;                     // rank 0 only
  std::vector<std::string> names_;  // of trace spans: "backward output", ..., "bucket 0", ...
  uint64_t bytes_before_ = 0;       // Stats::bytes_sent when the first step began

  // The step under way.
  struct Clock {
    int64_t begin_ns = 0, data_wait_ns = 0, wait_ns = 0, optimizer_ns = 0, end_ns = 0;
  };
  uint64_t step_ = 0;
  Clock clock_;
  bool last_micro_batch_ = false;
  int layer_ = -1;
  int64_t layer_begin_ns_ = 0;
};

template <class T>
BucketLayout layout_of(const Model<T>& model, double bucket_cap_mb) {
  constexpr size_t kFirstBucketBytes = 1 << 20;
  const auto cap = static_cast<size_t>(bucket_cap_mb * 1024 * 1024);
  std::vector<size_t> counts;
  for (const Parameter& parameter : model.parameters()) counts.push_back(parameter.count);
  return make_buckets(counts, sizeof(T),
                      {.first_bytes = std::min(kFirstBucketBytes, cap), .bytes = cap});
}

template <class T>
Run<T>::Run(const Options& options, const Corpus& corpus, Communicator& communicator)
    : options_(options),
      corpus_(corpus),
      communicator_(communicator),
      ranks_(static_cast<uint64_t>(communicator.size())),
      order_{.samples = corpus.samples(MlpShape::kContext),
             .global_batch = options.batch * options.accum * ranks_,
             .seed = options.seed},
      last_step_(options.steps != 0 ? options.steps : options.epochs * order_.steps_per_epoch()),
      model_(
          make_mlp<T>({.layers = options.layers, .width = options.width, .batch = options.batch})),
      layout_(layout_of(*model_, options.bucket_cap_mb)),
      parameters_(layout_.count),
      gradients_(layout_.count),
      reducer_(communicator, layout_, gradients_.data(),
               {.type = options.type(), .overlap = !options.no_overlap}),
      optimizer_(layout_.count, options.momentum),
      inputs_(options.batch * MlpShape::kContext),
      targets_(options.batch),
      loss_(2) {
  std::vector<T*> values, gradients;
  for (size_t offset : layout_.offsets) {
    values.push_back(parameters_.data() + offset);
    gradients.push_back(gradients_.data() + offset);
  }
  model_->bind(values, gradients);
  if (reports()) {  // the others get theirs by broadcast
    for (size_t p = 0; p < values.size(); ++p) {
      initialise(model_->parameters()[p], static_cast<int>(p), options.seed, values[p]);
    }
  }
}

template <class T>
Status Run<T>::run() {
  RONDO_RETURN_IF_ERROR(start());
  for (uint64_t number = 1; number <= last_step_; ++number) RONDO_RETURN_IF_ERROR(step(number));
  return finish();
}

template <class T>
Status Run<T>::start() {
  RONDO_RETURN_IF_ERROR(require_agreement(communicator_, options_, corpus_));
  if (order_.steps_per_epoch() == 0) {
    return Status(Code::kDataError,
                  "data '" + corpus_.path + "': has " + std::to_string(order_.samples) +
                      " samples, fewer than one global batch of " +
                      std::to_string(order_.global_batch) + ": lower --batch, --accum or --ranks");
  }
  for (const Bucket& bucket : layout_.buckets) {
    plans_.push_back(communicator_.plan(Collective::kAllReduce, bucket.count, options_.type(),
                                        gradients_.library()));
  }
  if (reports()) RONDO_RETURN_IF_ERROR(open_outputs());
  RONDO_RETURN_IF_ERROR(communicator_.broadcast(parameters_.data(), parameters_.data(),
                                                layout_.count, options_.type(), 0));
  bytes_before_ = communicator_.stats().bytes_sent;
  return {};
}

template <class T>
Status Run<T>::open_outputs() {
  Result<Report> report = Report::open(options_, last_step_, config_of(facts()));
  RONDO_RETURN_IF_ERROR(report.status());
  report_ = std::move(report).value();

  std::vector<std::string> lanes = {"compute", "all-reduce of the loss"};
  for (const std::string& layer : model_->layers()) names_.push_back("backward " + layer);
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    lanes.push_back("bucket " + std::to_string(b));
    names_.push_back("all-reduce " + lanes.back());
  }
  Result<Trace> trace = Trace::open(options_.trace, communicator_.rank(), std::move(lanes));
  RONDO_RETURN_IF_ERROR(trace.status());
  trace_ = std::move(trace).value();
  announce(facts());
  return {};
}

template <class T>
RunFacts Run<T>::facts() const {
  return {.options = options_,
          .corpus = corpus_,
          .order = order_,
          .parameters = model_->parameters(),
          .layout = layout_,
          .plans = plans_,
          .ranks = ranks_,
          .last_step = last_step_};
}

template <class T>
Status Run<T>::step(uint64_t number) {
  step_ = number;
  clock_ = {.begin_ns = now_ns()};
  reducer_.begin();
  Work loss_work = pass();

  clock_.wait_ns = now_ns();
  Status status = reducer_.finish();
  // Also after a failure: its buffer must not be in use.
  const Status loss_status = loss_work.wait();
  if (status.ok()) status = loss_status;
  RONDO_RETURN_IF_ERROR(status);
  clock_.optimizer_ns = now_ns();
  optimizer_.step(gradients_.data(), options_.lr, parameters_.data());
  clock_.end_ns = now_ns();

  const double loss = loss_.data()[1] / static_cast<double>(order_.global_batch);
  if (!std::isfinite(loss)) {
    return Status(Code::kInvalidArgument, "the loss became " + std::to_string(loss) + " in step " +
                                              std::to_string(number) +
                                              fmt::format(": lower --lr, now {}", options_.lr));
  }
  if (reports()) record(loss, loss_work.times());
  return {};
}

/// Forward and backward over the step's micro-batches, with the buckets' all-reduces started on the
/// way; returns the loss's.
template <class T>
Work Run<T>::pass() {
  static const std::string kForward = "forward", kData = "data";
  const Batch batch{.size = options_.batch, .inputs = inputs_.data(), .targets = targets_.data()};
  // Scaled by the global batch, the sum over ranks is the mean, and each sample contributes the
  // same bits to it on however many ranks it is computed.
  const T scale = T{1} / static_cast<T>(order_.global_batch);
  loss_.data()[0] = 0;
  for (uint64_t micro = 0;; ++micro) {
    const int64_t data_ns = now_ns();
    fetch(micro);
    const int64_t forward_ns = now_ns();
    loss_.data()[0] += model_->forward(batch);
    clock_.data_wait_ns += forward_ns - data_ns;
    trace_.span(kComputeLane, kData, step_, data_ns, forward_ns);
    trace_.span(kComputeLane, kForward, step_, forward_ns, now_ns());

    last_micro_batch_ = micro + 1 == options_.accum;
    if (!last_micro_batch_) {
      model_->backward(batch, scale, micro > 0, *this);
      layer_begins(-1);
      continue;
    }
    Work loss_work =
        communicator_.all_reduce_async(&loss_.data()[0], &loss_.data()[1], 1, DataType::kFloat64);
    model_->backward(batch, scale, micro > 0, *this);
    layer_begins(-1);
    return loss_work;
  }
}

/// Rank 0: one line of the report, and the rest of the step's trace.
template <class T>
void Run<T>::record(double loss, const Work::Times& loss_times) {
  static const std::string kWait = "wait for all-reduces", kOptimizer = "optimizer";
  const Clock& c = clock_;
  trace_.span(kComputeLane, kWait, step_, c.wait_ns, c.optimizer_ns);
  trace_.span(kComputeLane, kOptimizer, step_, c.optimizer_ns, c.end_ns);
  trace_communication(loss_times);
  // They end in issue order; what counts is the time in which at least one is under way.
  int64_t comm_ns = loss_times.ended_ns - loss_times.issued_ns, until = loss_times.ended_ns;
  for (const Work::Times& times : reducer_.times()) {
    comm_ns += std::max<int64_t>(0, times.ended_ns - std::max(until, times.issued_ns));
    until = std::max(until, times.ended_ns);
  }
  const int64_t step_ns = c.end_ns - c.begin_ns, exposed_ns = c.optimizer_ns - c.wait_ns;
  report_->add({.step = step_,
                .epoch = order_.epoch_of(step_),
                .loss = loss,
                .lr = options_.lr,
                .samples_per_s =
                    static_cast<double>(order_.global_batch) * 1e9 / static_cast<double>(step_ns),
                .step_ms = to_ms(step_ns),
                .compute_ms = to_ms(step_ns - exposed_ns - c.data_wait_ns),
                .comm_ms = to_ms(comm_ns),
                .exposed_comm_ms = to_ms(exposed_ns),
                .data_wait_ms = to_ms(c.data_wait_ns)});
}

/// This rank's share of the step: consecutive entries of the global order, after those of the ranks
/// before it.
template <class T>
void Run<T>::fetch(uint64_t micro_batch) {
  const Permutation permutation = order_.permutation_of(step_);
  const uint64_t rank = static_cast<uint64_t>(communicator_.rank());
  const uint64_t first =
      order_.first_of(step_) + (rank * options_.accum + micro_batch) * options_.batch;
  for (uint64_t i = 0; i < options_.batch; ++i) {
    const uint8_t* sample = corpus_.bytes.data() + permutation(first + i);
    std::copy_n(sample, MlpShape::kContext, inputs_.data() + i * MlpShape::kContext);
    targets_[i] = sample[MlpShape::kContext];
  }
}

/// Closes the previous layer's span; -1 only closes.
template <class T>
void Run<T>::layer_begins(int layer) {
  if (!reports()) return;
  const int64_t now = now_ns();
  if (layer_ >= 0) {
    trace_.span(kComputeLane, names_[static_cast<size_t>(layer_)], step_, layer_begin_ns_, now);
  }
  layer_ = layer;
  layer_begin_ns_ = now;
}

template <class T>
void Run<T>::gradient_ready(int parameter) {
  if (last_micro_batch_) reducer_.gradient_ready(parameter);
}

template <class T>
void Run<T>::trace_communication(const Work::Times& loss) {
  static const std::string kQueued = "queued", kLoss = "all-reduce of the loss";
  const auto add = [&](size_t lane, const std::string& name, const Work::Times& times) {
    trace_.span(lane, kQueued, step_, times.issued_ns, times.started_ns);
    trace_.span(lane, name, step_, times.started_ns, times.ended_ns);
  };
  add(kLossLane, kLoss, loss);
  for (size_t b = 0; b < layout_.buckets.size(); ++b) {
    add(kFirstBucketLane + b, names_[model_->layers().size() + b], reducer_.times()[b]);
  }
}

/// Compares all ranks' parameters, and reports.
template <class T>
Status Run<T>::finish() {
  const uint64_t mine[] = {hash_bytes(parameters_.data(), parameters_.bytes()),
                           (communicator_.stats().bytes_sent - bytes_before_) / last_step_};
  Result<std::vector<uint64_t>> all = gather_words(communicator_, mine);
  RONDO_RETURN_IF_ERROR(all.status());
  std::vector<uint64_t> bytes_sent;
  for (uint64_t r = 0; r < ranks_; ++r) {
    if (all.value()[2 * r] != all.value()[0]) {
      return Status(Code::kMismatch, "after the last step rank " + std::to_string(r) +
                                         " holds other parameters than rank 0: this is a bug");
    }
    bytes_sent.push_back(all.value()[2 * r + 1]);
  }
  if (!reports()) return {};
  RONDO_RETURN_IF_ERROR(report_->finish(summarize(facts(), *report_, bytes_sent, mine[0])));
  return trace_.close();
}

template <class T>
Status train_with(const Options& options, const Corpus& corpus, Communicator& communicator) try {
  Run<T> run(options, corpus, communicator);
  const Status status = run.run();
  if (!status.ok()) run.abandon(status);
  return status;
} catch (const std::bad_alloc&) {
  return Status(Code::kResourceExhausted,
                "not enough memory for --layers " + std::to_string(options.layers) + " --width " +
                    std::to_string(options.width) + " --batch " + std::to_string(options.batch));
}

}  // namespace

Status train(const Options& options, const Corpus& corpus, Communicator& communicator) {
  const Status status = options.type() == DataType::kFloat64
                            ? train_with<double>(options, corpus, communicator)
                            : train_with<float>(options, corpus, communicator);
  if (!status.ok()) communicator.abort(status.message());
  return status;
}

}  // namespace rondo::trainer
