// See strategy_dp.hpp. A step's collectives, all with rank 0 as their root, the same on every rank:
// scatter of samples, broadcast of parameters and buffers; reduce of the loss and of the gradients.
#include "trainer/strategy_dp.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>

#include "trainer/checkpointing.hpp"
#include "trainer/evaluate.hpp"
#include "trainer/global_batch.hpp"
#include "trainer/hash.hpp"
#include "trainer/ranks.hpp"
#include "trainer/report.hpp"
#include "trainer/setup.hpp"
#include "trainer/shares.hpp"
#include "trainer/summary.hpp"
#include "trainer/timeline.hpp"
#include "trainer/weights.hpp"

namespace rondo::trainer {
namespace {

constexpr int kRoot = 0;
constexpr CallOptions kStarCall{.algorithm = Algorithm::kStar};

double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Of the trace.
enum StarLane : size_t { kReplicaLane, kRootLane };
const std::string kDpLoad = "data", kDpForward = "forward", kDpBackward = "backward";
const std::string kDpUpdate = "optimizer", kDpScatter = "scatter samples and parameters";
const std::string kDpGather = "gather loss and gradients";

/// Blocks until all have ended; the first failure.
Status wait_for(std::vector<Work>& works) {
  Status first;
  for (Work& work : works) {
    const Status status = work.wait();
    if (first.ok()) first = status;
  }
  works.clear();
  return first;
}

/// What a run is made of before its first step. Borrowed.
template <class T>
struct Borrowed {
  const Options& options;
  const Dataset& data;
  const Dataset* validation;
  Communicator& communicator;
  Model<T>& model;
  Weights<T>& weights;
};

template <class T>
class DataParallelRun : private BackwardListener {
 public:
  explicit DataParallelRun(const Borrowed<T>& parts);
  Status run();
  void abandon(const Status& why) {
    if (report_) report_->abandon(why);
  }

 private:
  Status start();
  Status plan_steps();
  Status open_outputs();
  Status step();
  Status load();
  Status scatter();
  Status compute();
  void add_second_gradients();
  Status gather();
  Status update();
  void send_parameters(std::vector<Work>& works);
  Status validate();
  Status finish();
  nlohmann::ordered_json summary(const std::vector<uint64_t>& bytes_sent, uint64_t hash) const;
  RunFacts facts() const;

  void layer_begins(int) override {}
  // Nothing travels yet; the optimizer asks which were used.
  void gradient_ready(int parameter, size_t count) override {
    ddp_.gradient_ready(static_cast<size_t>(parameter), count);
  }
  void gradient_skipped(int) override {}
  bool is_root() const { return communicator_.rank() == kRoot; }

  const Options& o_;
  const Dataset& data_;
  const Dataset* validation_;
  Communicator& communicator_;
  Model<T>& model_;
  Weights<T>& weights_;
  DistributedDataParallel& ddp_;  // its storage; its reducer stays silent
  const uint64_t ranks_;
  const ShareFormat format_;
  Buffer<std::byte> all_shares_;  // root: a block for each rank
  Buffer<std::byte> share_;
  Buffer<double> loss_;  // this rank's sum; on the root all ranks'
  ScheduleOptions schedule_;
  std::optional<GlobalBatch> global_;  // root
  std::optional<Report> report_;       // root
  Trace trace_;
  std::vector<Plan> plans_;  // of each bucket that ddp would have: only counted
  uint64_t steps_per_epoch_ = 0, last_step_ = 0, bytes_before_ = 0;

  uint64_t step_ = 0, epoch_ = 0, step_samples_ = 0;
  struct Clock {
    int64_t begin_ns = 0, loaded_ns = 0, scattered_ns = 0, computed_ns = 0, gathered_ns = 0;
  };
  Clock clock_;
};

template <class T>
DataParallelRun<T>::DataParallelRun(const Borrowed<T>& parts)
    : o_(parts.options),
      data_(parts.data),
      validation_(parts.validation),
      communicator_(parts.communicator),
      model_(parts.model),
      weights_(parts.weights),
      ddp_(parts.weights.ddp()),
      ranks_(static_cast<uint64_t>(communicator_.size())),
      format_(data_.shape(), o_.batch),
      all_shares_(is_root() ? format_.bytes() * ranks_ : 0),
      share_(format_.bytes()),
      loss_(1) {}

template <class T>
Status DataParallelRun<T>::run() {
  RONDO_RETURN_IF_ERROR(start());
  while (step_ < last_step_) {
    RONDO_RETURN_IF_ERROR(step());
    if (o_.validate_every != 0 && step_ % o_.validate_every == 0 && step_ < last_step_) {
      RONDO_RETURN_IF_ERROR(validate());
    }
  }
  return finish();
}

template <class T>
Status DataParallelRun<T>::start() {
  if (is_root()) weights_.initialise_parameters(o_.seed);
  if (!o_.weights.empty()) {
    RONDO_RETURN_IF_ERROR(load_weights(o_.weights, communicator_, model_, weights_));
  }
  RONDO_RETURN_IF_ERROR(plan_steps());
  if (is_root()) {
    Result<GlobalBatch> global = GlobalBatch::create(o_, data_, ranks_, format_);
    RONDO_RETURN_IF_ERROR(global.status());
    global_.emplace(std::move(global).value());
    global_->start_epoch(0);
  }
  RONDO_RETURN_IF_ERROR(open_outputs());
  bytes_before_ = communicator_.stats().bytes_sent;
  return {};
}

template <class T>
Status DataParallelRun<T>::plan_steps() {
  const DistributedSampler sampler = share_of_rank(o_, data_, ranks_, 0);
  const uint64_t samples = o_.drop_last ? sampler.least() : sampler.most();
  steps_per_epoch_ = (samples + (o_.drop_last ? 0 : o_.batch - 1)) / o_.batch;
  if (steps_per_epoch_ == 0) {
    return Status(Code::kDataError, "data '" + data_.facts().path + "': has " +
                                        std::to_string(data_.samples()) +
                                        " samples, too few for one batch of " +
                                        std::to_string(o_.batch) + " on each rank");
  }
  last_step_ = o_.steps != 0 ? o_.steps : o_.epochs * steps_per_epoch_;
  schedule_ = schedule_options(o_, o_.batch * ranks_, last_step_);
  return check(schedule_);
}

template <class T>
Status DataParallelRun<T>::open_outputs() {
  if (is_root()) RONDO_RETURN_IF_ERROR(try_outputs(o_));
  Result<Trace> trace = Trace::open(o_.trace, communicator_.rank(), {"compute", "communication"});
  RONDO_RETURN_IF_ERROR(trace.status());
  trace_ = std::move(trace).value();
  plans_.assign(ddp_.layout().size(),
                communicator_.plan(Collective::kReduce, ddp_.parameter_elements(), o_.type(), false,
                                   Algorithm::kStar));
  if (!is_root()) return {};
  Result<Report> report = Report::open(o_, last_step_, config_of(facts()));
  RONDO_RETURN_IF_ERROR(report.status());
  report_ = std::move(report).value();
  spdlog::info(
      "{}: dp, as DataParallel: rank 0 scatters {} bytes of samples and {} of parameters"
      " to each rank, and gets {} of gradients back",
      o_.model, format_.bytes(), ddp_.parameter_elements() * sizeof(T),
      ddp_.parameter_elements() * sizeof(T));
  return {};
}

template <class T>
RunFacts DataParallelRun<T>::facts() const {
  return {.options = o_,
          .data = data_.facts(),
          .ddp = ddp_,
          .plans = plans_,
          .ranks = ranks_,
          .steps_per_epoch = steps_per_epoch_,
          .last_step = last_step_,
          .global_batch = o_.batch * ranks_,
          .optimizer_bytes =
              weights_.optimizer().state().size() * ddp_.parameter_elements() * sizeof(T),
          .own_optimizer_bytes = is_root() ? weights_.optimizer().state().size() *
                                                 ddp_.parameter_elements() * sizeof(T)
                                           : 0,
          .activation_bytes = model_.activation_bytes(),
          .gemm_operations = model_.gemm_operations(),
          .first_step = 0};
}

template <class T>
Status DataParallelRun<T>::step() {
  ++step_;
  clock_ = {.begin_ns = now_ns()};
  RONDO_RETURN_IF_ERROR(load());
  clock_.loaded_ns = now_ns();
  RONDO_RETURN_IF_ERROR(scatter());
  clock_.scattered_ns = now_ns();
  RONDO_RETURN_IF_ERROR(compute());
  clock_.computed_ns = now_ns();
  RONDO_RETURN_IF_ERROR(gather());
  clock_.gathered_ns = now_ns();
  trace_.span(kReplicaLane, kDpLoad, step_, clock_.begin_ns, clock_.loaded_ns);
  trace_.span(kRootLane, kDpScatter, step_, clock_.loaded_ns, clock_.scattered_ns);
  trace_.span(kRootLane, kDpGather, step_, clock_.computed_ns, clock_.gathered_ns);
  return is_root() ? update() : Status();
}

template <class T>
Status DataParallelRun<T>::load() {
  if (!is_root()) return {};
  if (global_->batches_left() == 0) global_->start_epoch(++epoch_);
  const Result<uint64_t> samples = global_->load(model_.loss_terms(), all_shares_.data());
  RONDO_RETURN_IF_ERROR(samples.status());
  step_samples_ = samples.value();
  return {};
}

/// What DataParallel calls replicate(). Every rank's become rank 0's.
template <class T>
void DataParallelRun<T>::send_parameters(std::vector<Work>& works) {
  works.push_back(communicator_.broadcast_async(ddp_.parameters(), ddp_.parameters(),
                                                ddp_.parameter_elements(), type_of<T>(), kRoot,
                                                kStarCall));
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    works.push_back(communicator_.broadcast_async(
        ddp_.buffer(b), ddp_.buffer(b), ddp_.buffers()[b].count(), type_of<T>(), kRoot, kStarCall));
  }
}

template <class T>
Status DataParallelRun<T>::scatter() {
  std::vector<Work> works;
  works.push_back(communicator_.scatter_async(all_shares_.data(), share_.data(), format_.bytes(),
                                              DataType::kUint8, kRoot, kStarCall));
  send_parameters(works);
  return wait_for(works);
}

template <class T>
Status DataParallelRun<T>::compute() {
  const Batch batch = format_.unpack(share_.data());
  const Pass pass{.training = true, .seed = o_.seed, .step = step_};
  const int64_t begin_ns = now_ns();
  const Result<double> loss = model_.forward(batch, pass);
  RONDO_RETURN_IF_ERROR(loss.status());
  loss_.data()[0] = loss.value();
  const int64_t forward_ns = now_ns();
  const auto quiet = ddp_.no_sync();
  RONDO_RETURN_IF_ERROR(model_.backward(batch, pass, T{1}, false, *this));
  add_second_gradients();
  trace_.span(kReplicaLane, kDpForward, step_, begin_ns, forward_ns);
  trace_.span(kReplicaLane, kDpBackward, step_, forward_ns, now_ns());
  return {};
}

/// Here, so that they need not travel: with nothing to overlap there is no hurry for the first.
template <class T>
void DataParallelRun<T>::add_second_gradients() {
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    const DdpTensor& tensor = ddp_.tensors()[t];
    if (tensor.adds_to < 0) continue;
    const T* second = ddp_.template gradient<T>(t);
    T* first = ddp_.template gradient<T>(static_cast<size_t>(tensor.adds_to));
    for (size_t i = 0; i < tensor.count(); ++i) first[i] += second[i];
  }
}

/// The loss's sum, and the gradients' mean over all loss terms, to the root.
template <class T>
Status DataParallelRun<T>::gather() {
  const uint64_t terms = format_.all_terms(share_.data());
  CallOptions scaled = kStarCall;
  scaled.factor = terms == 0 ? 0.0 : 1 / static_cast<double>(terms);
  std::vector<Work> works;
  works.push_back(communicator_.reduce_async(loss_.data(), loss_.data(), 1, DataType::kFloat64,
                                             kRoot, ReduceOp::kSum, kStarCall));
  works.push_back(communicator_.reduce_async(ddp_.gradients(), ddp_.gradients(),
                                             ddp_.parameter_elements(), type_of<T>(), kRoot,
                                             ReduceOp::kScaledSum, scaled));
  return wait_for(works);
}

/// The root's update, and its line of the report.
template <class T>
Status DataParallelRun<T>::update() {
  const double rate = learning_rate(schedule_, step_);
  const Result<typename Weights<T>::Update> updated = weights_.update(rate, o_.clip);
  RONDO_RETURN_IF_ERROR(updated.status());
  const typename Weights<T>::Update& made = updated.value();
  RONDO_RETURN_IF_ERROR(weights_.await_parameters().status());
  const int64_t end_ns = now_ns();
  trace_.span(kReplicaLane, kDpUpdate, step_, clock_.gathered_ns, end_ns);
  const double loss = loss_.data()[0] / static_cast<double>(format_.all_terms(share_.data()));
  if (!std::isfinite(loss)) {
    return Status(Code::kInvalidArgument, fmt::format("the loss became {} in step {}: lower --lr, "
                                                      "now {}",
                                                      loss, step_, o_.lr));
  }
  const int64_t comm_ns =
      (clock_.scattered_ns - clock_.loaded_ns) + (clock_.gathered_ns - clock_.computed_ns);
  const int64_t step_ns = end_ns - clock_.begin_ns, data_ns = clock_.loaded_ns - clock_.begin_ns;
  report_->add(
      {.step = step_,
       .epoch = epoch_,
       .loss = loss,
       .lr = rate,
       .samples_per_s = static_cast<double>(step_samples_) * 1e9 / static_cast<double>(step_ns),
       .step_ms = ms(step_ns),
       .compute_ms = ms(step_ns - comm_ns - data_ns),
       .comm_ms = ms(comm_ns),
       .exposed_comm_ms = ms(comm_ns),  // nothing hides it
       .data_wait_ms = ms(data_ns),
       .gradient_norm = made.norm,
       .skipped = !made.made});
  return {};
}

template <class T>
Status DataParallelRun<T>::validate() {
  if (validation_ == nullptr) return {};
  std::vector<Work> works;
  send_parameters(works);  // only the root has those of the last update
  RONDO_RETURN_IF_ERROR(wait_for(works));
  const Result<Evaluation> result = evaluate(o_, *validation_, model_, communicator_);
  RONDO_RETURN_IF_ERROR(result.status());
  if (!is_root()) return {};
  report_->add_validation({.step = step_,
                           .loss = result.value().loss,
                           .accuracy = result.value().accuracy,
                           .samples = result.value().samples});
  return {};
}

template <class T>
Status DataParallelRun<T>::finish() {
  const uint64_t sent = communicator_.stats().bytes_sent - bytes_before_;
  RONDO_RETURN_IF_ERROR(validate());
  if (!o_.save_weights.empty()) {
    RONDO_RETURN_IF_ERROR(save_weights(o_.save_weights, communicator_, model_, weights_));
  }
  const uint64_t mine[] = {hash_bytes(ddp_.parameters(), ddp_.parameter_elements() * sizeof(T)),
                           sent / step_};
  const Result<std::vector<uint64_t>> all = gather_words(communicator_, mine);
  RONDO_RETURN_IF_ERROR(all.status());
  std::vector<uint64_t> bytes_sent;
  for (uint64_t r = 0; r < ranks_; ++r) bytes_sent.push_back(all.value()[2 * r + 1]);
  RONDO_RETURN_IF_ERROR(trace_.close(communicator_));
  return is_root() ? report_->finish(summary(bytes_sent, mine[0])) : Status();
}

/// ddp's, with what the star does in place of what buckets would have done.
template <class T>
nlohmann::ordered_json DataParallelRun<T>::summary(const std::vector<uint64_t>& bytes_sent,
                                                   uint64_t hash) const {
  nlohmann::ordered_json all = summarize(facts(), *report_, bytes_sent, hash);
  const Plan scattered = communicator_.plan(Collective::kScatter, format_.bytes(), DataType::kUint8,
                                            false, Algorithm::kStar);
  const Plan parameters = communicator_.plan(Collective::kBroadcast, ddp_.parameter_elements(),
                                             o_.type(), false, Algorithm::kStar);
  size_t down = format_.bytes() + ddp_.parameter_elements() * sizeof(T);
  for (const DdpTensor& buffer : ddp_.buffers()) down += buffer.count() * sizeof(T);
  all["gradient_bytes_per_step"] = ddp_.parameter_elements() * sizeof(T);
  // Of the root.
  all["bytes_formula_per_step"] = static_cast<double>((ranks_ - 1) * down);
  all["predicted_comm_us"] =
      scattered.predicted_us + parameters.predicted_us + plans_[0].predicted_us;
  const nlohmann::ordered_json bucket = {{"parameters", ddp_.tensors().size()},
                                         {"bytes", ddp_.parameter_elements() * sizeof(T)},
                                         {"algorithm", name(Algorithm::kStar)},
                                         {"predicted_us", plans_[0].predicted_us}};
  all["buckets"] = nlohmann::ordered_json::array({bucket});
  return all;
}

}  // namespace

template <class T>
Status train_dp(const Options& options, const Dataset& data, const Dataset* validation,
                Communicator& communicator) try {
  RONDO_RETURN_IF_ERROR(require_agreement(communicator, options, data, validation));
  const std::unique_ptr<Model<T>> model = make_model<T>(options, data.shape(), nullptr);
  Result<Weights<T>> weights = Weights<T>::create(*model, communicator, options);
  RONDO_RETURN_IF_ERROR(weights.status());
  DataParallelRun<T> run({.options = options,
                          .data = data,
                          .validation = validation,
                          .communicator = communicator,
                          .model = *model,
                          .weights = weights.value()});
  const Status status = run.run();
  if (!status.ok()) run.abandon(status);
  return status;
} catch (const std::bad_alloc&) {
  return Status(Code::kResourceExhausted, "not enough memory for --strategy dp with --layers " +
                                              std::to_string(options.layers) + " --batch " +
                                              std::to_string(options.batch));
}

template Status train_dp<float>(const Options&, const Dataset&, const Dataset*, Communicator&);
template Status train_dp<double>(const Options&, const Dataset&, const Dataset*, Communicator&);

}  // namespace rondo::trainer
