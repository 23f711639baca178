// See strategy_dp.hpp. A step's collectives, all with rank 0 as their root, the same on every rank:
// scatter of samples, broadcast of parameters and buffers; reduce of the loss and of the gradients.
#include "trainer/strategy_dp.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <new>
#include <optional>

#include "trainer/checkpointing.hpp"
#include "trainer/evaluate.hpp"
#include "trainer/global_batch.hpp"
#include "trainer/loop.hpp"
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

template <class T>
class DataParallelRun : public TrainingLoop, private BackwardListener {
 public:
  DataParallelRun(const LoopParts& parts, Model<T>& model, Weights<T>& weights)
      : TrainingLoop(parts),
        model_(model),
        weights_(weights),
        format_(data_.shape(), o_.batch),
        all_shares_(reports() ? format_.bytes() * ranks_ : 0),
        share_(format_.bytes()),
        loss_(1) {}

 private:
  Status start() override;
  Result<bool> step() override;
  Status settle() override;
  Status write_weights() override {
    return save_weights(o_.save_weights, communicator_, model_, weights_);
  }
  Result<Evaluation> evaluate_model() override {
    return evaluate(o_, *validation_, model_, communicator_);
  }
  Status conclude(const End& end) override;
  RunFacts::Sizes sizes() const override;

  Status plan_steps();
  Status open_outputs();
  Status load();
  Status scatter();
  Status compute();
  void add_second_gradients();
  Status gather();
  Status update();
  void send_parameters(std::vector<Work>& works);
  nlohmann::ordered_json summary(const End& end) const;

  void layer_begins(int) override {}
  // Nothing travels yet; the optimizer asks which were used.
  void gradient_ready(int parameter, size_t count) override {
    ddp_.gradient_ready(static_cast<size_t>(parameter), count);
  }
  void gradient_skipped(int) override {}

  // Of ddp_ only the storage is used; its reducer stays silent. plans_: of the buckets that it
  // would have, only counted.
  Model<T>& model_;
  Weights<T>& weights_;
  const ShareFormat format_;
  Buffer<std::byte> all_shares_;  // root: a block for each rank
  Buffer<std::byte> share_;
  Buffer<double> loss_;                // this rank's sum; on the root all ranks'
  std::optional<GlobalBatch> global_;  // root
  Trace trace_;

  uint64_t step_samples_ = 0;
  struct Clock {
    int64_t begin_ns = 0, loaded_ns = 0, scattered_ns = 0, computed_ns = 0, gathered_ns = 0;
  };
  Clock clock_;
};

template <class T>
Status DataParallelRun<T>::start() {
  if (reports()) weights_.initialise_parameters(o_.seed);
  if (!o_.weights.empty()) {
    RONDO_RETURN_IF_ERROR(load_weights(o_, communicator_, model_, weights_));
  }
  RONDO_RETURN_IF_ERROR(plan_steps());
  if (reports()) {
    Result<GlobalBatch> global = GlobalBatch::create(o_, data_, ranks_, format_);
    RONDO_RETURN_IF_ERROR(global.status());
    global_.emplace(std::move(global).value());
    global_->start_epoch(0);
  }
  return open_outputs();
}

template <class T>
Status DataParallelRun<T>::plan_steps() {
  const DistributedSampler sampler = share_of_rank(o_, data_, ranks_, 0);
  const uint64_t samples = o_.drop_last ? sampler.least() : sampler.most();
  steps_per_epoch_ = (samples + (o_.drop_last ? 0 : o_.batch - 1)) / o_.batch;
  last_step_ = o_.steps != 0 ? o_.steps : o_.epochs * steps_per_epoch_;
  expected_last_step_ = last_step_;
  return plan_schedule();
}

template <class T>
Status DataParallelRun<T>::open_outputs() {
  plans_.assign(ddp_.layout().size(),
                communicator_.plan(Collective::kReduce, ddp_.parameter_elements(), o_.type(), false,
                                   Algorithm::kStar));
  RONDO_RETURN_IF_ERROR(open_report());
  Result<Trace> trace = Trace::open(o_.trace, communicator_.rank(), {"compute", "communication"});
  RONDO_RETURN_IF_ERROR(trace.status());
  trace_ = std::move(trace).value();
  if (!reports()) return {};
  spdlog::info(
      "{}: dp, as DataParallel: rank 0 scatters {} bytes of samples and {} of parameters"
      " to each rank, and gets {} of gradients back",
      o_.model, format_.bytes(), ddp_.parameter_elements() * sizeof(T),
      ddp_.parameter_elements() * sizeof(T));
  return {};
}

template <class T>
RunFacts::Sizes DataParallelRun<T>::sizes() const {
  const size_t optimizer_bytes =
      weights_.optimizer().state().size() * ddp_.parameter_elements() * sizeof(T);
  return {.optimizer_bytes = optimizer_bytes,
          .own_optimizer_bytes = reports() ? optimizer_bytes : 0,
          .activation_bytes = model_.activation_bytes(),
          .gemm_operations = model_.gemm_operations(),
          .readers = global_ ? global_->workers() : 0};
}

template <class T>
Result<bool> DataParallelRun<T>::step() {
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
  if (reports()) RONDO_RETURN_IF_ERROR(update());
  return true;
}

template <class T>
Status DataParallelRun<T>::load() {
  if (!reports()) return {};
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
  RONDO_RETURN_IF_ERROR(require_finite(loss));
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
       .other_wait_ms = 0,
       .data_wait_ms = ms(data_ns),
       .gradient_norm = made.norm,
       .skipped = !made.made});
  return {};
}

/// Only the root has the parameters of the last update.
template <class T>
Status DataParallelRun<T>::settle() {
  std::vector<Work> works;
  send_parameters(works);
  return wait_for(works);
}

template <class T>
Status DataParallelRun<T>::conclude(const End& end) {
  RONDO_RETURN_IF_ERROR(trace_.close(communicator_));
  return reports() ? report_->finish(summary(end)) : Status();
}

/// ddp's, with what the star does in place of what buckets would have done.
template <class T>
nlohmann::ordered_json DataParallelRun<T>::summary(const End& end) const {
  nlohmann::ordered_json all = summarize(facts(), *report_, end.bytes_sent, end.hashes[0]);
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
                Communicator& communicator, std::optional<Report>& report) try {
  RONDO_RETURN_IF_ERROR(require_agreement(communicator, options, data, validation));
  const std::unique_ptr<Model<T>> model = make_model<T>(options, data.shape(), nullptr);
  Result<Weights<T>> weights = Weights<T>::create(*model, communicator, options);
  RONDO_RETURN_IF_ERROR(weights.status());
  DataParallelRun<T> run({.options = options,
                          .data = data,
                          .validation = validation,
                          .communicator = communicator,
                          .ddp = weights->ddp(),
                          .report = report},
                         *model, weights.value());
  return run.run();
} catch (const std::bad_alloc&) {
  return Status(Code::kResourceExhausted, "not enough memory for --strategy dp with --layers " +
                                              std::to_string(options.layers) + " --batch " +
                                              std::to_string(options.batch));
}

template Status train_dp<float>(const Options&, const Dataset&, const Dataset*, Communicator&,
                                std::optional<Report>&);
template Status train_dp<double>(const Options&, const Dataset&, const Dataset*, Communicator&,
                                 std::optional<Report>&);

}  // namespace rondo::trainer
