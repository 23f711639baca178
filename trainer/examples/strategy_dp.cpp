// See strategy_dp.hpp. A step's collectives, all with rank 0 as their root, the same on every rank:
// scatter of samples, broadcast of parameters and buffers; reduce of the loss and of the gradients.
#include "trainer/examples/strategy_dp.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "trainer/base/clock.hpp"
#include "trainer/report/trace.hpp"
#include "trainer/step/setup.hpp"

namespace rondo::trainer {
namespace {

enum StarLane : size_t { kReplicaLane, kRootLane };  // of the trace
const std::string kDpLoad = "data", kDpCompute = "forward and backward", kDpUpdate = "optimizer";
const std::string kDpScatter = "scatter samples and parameters",
                  kDpGather = "gather loss and gradients";

/// A global batch on its way from the root to all ranks, a block for each: {samples, loss terms of
/// all ranks, whether this step is the last because the root is to stop}, then its arrays.
class Shares {
 public:
  /// `ranks`: 0 but on the root.
  Shares(const SampleShape& shape, size_t batch, uint64_t ranks)
      : bytes_{sizeof(uint64_t), shape.context * sizeof(int32_t), shape.targets * sizeof(int32_t),
               shape.pixels() * sizeof(float)} {
    at_[0] = 3 * sizeof(uint64_t);
    for (size_t a = 0; a < kArrays; ++a) at_[a + 1] = at_[a] + batch * bytes_[a];
    at_[kArrays] += at_[kArrays] % sizeof(uint64_t);  // the arrays are of words and half words
    all_ = Buffer<std::byte>(bytes() * ranks);
    own_ = Buffer<std::byte>(bytes());
  }

  size_t bytes() const { return at_[kArrays]; }

  void put(uint64_t rank, const Batch& batch) {
    const void* arrays[kArrays] = {batch.ids, batch.tokens, batch.targets, batch.images};
    for (size_t a = 0; a < kArrays; ++a) {
      if (bytes_[a] * batch.size == 0) continue;
      std::memcpy(all_.data() + rank * bytes() + at_[a], arrays[a], batch.size * bytes_[a]);
    }
    words_of(rank)[0] = batch.size;
  }
  void set_for_all(uint64_t rank, uint64_t terms, bool stops) {
    words_of(rank)[1] = terms;
    words_of(rank)[2] = stops ? 1 : 0;
  }

  Status scatter(Communicator& communicator) {
    return communicator.scatter(all_.data(), own_.data(), bytes(), DataType::kUint8, kReplicaRoot,
                                kStarCall);
  }

  /// This rank's. Borrowed.
  Batch batch() const {
    return {.size = own<uint64_t>(0)[0],
            .tokens = own<int32_t>(at_[1]),
            .images = own<float>(at_[3]),
            .targets = own<int32_t>(at_[2]),
            .ids = own<uint64_t>(at_[0])};
  }
  uint64_t all_terms() const { return own<uint64_t>(0)[1]; }
  bool stops() const { return own<uint64_t>(0)[2] != 0; }

 private:
  static constexpr size_t kArrays = 4;  // ids, tokens, targets, images

  uint64_t* words_of(uint64_t rank) {
    return reinterpret_cast<uint64_t*>(all_.data() + rank * bytes());
  }
  template <class Element>
  const Element* own(size_t at) const {
    return reinterpret_cast<const Element*>(own_.data() + at);
  }

  std::array<size_t, kArrays> bytes_;   // of a sample
  std::array<size_t, kArrays + 1> at_;  // in a block, whose end is the last
  Buffer<std::byte> all_, own_;
};

/// In the host's memory. Of the weights' reducer only the storage is used; it stays silent.
template <class T>
class HostReplica final : public Replica {
 public:
  explicit HostReplica(Run<T>& run) : run_(run), ddp_(run.weights.ddp()), loss_(1) {}

  Status begin() override { return {}; }
  Result<ReplicaStep> step(const ReplicaShare& share) override;
  Status replicate() override { return run_.weights.replicate(); }
  Status fetch() override { return {}; }
  void describe(nlohmann::ordered_json& /*summary*/) const override {}

 private:
  Status send_parameters();
  Status compute(const Batch& batch, uint64_t number);
  Status gather(uint64_t terms);

  Run<T>& run_;
  DistributedDataParallel& ddp_;
  Buffer<double> loss_;  // this rank's sum; on the root all ranks'
};

template <class T>
Result<ReplicaStep> HostReplica<T>::step(const ReplicaShare& share) {
  ReplicaStep made;
  RONDO_TRY(send_parameters());
  made.scattered_ns = now_ns();
  RONDO_TRY(compute(share.batch, share.number));
  made.computed_ns = now_ns();
  RONDO_TRY(gather(share.all_terms));
  made.gathered_ns = now_ns();
  if (run_.reports()) {
    made.loss = loss_.data()[0];
    made.update = RONDO_TRY(run_.weights.update(share.rate, run_.options.clip));
    RONDO_TRY(run_.weights.await_parameters().status());
  }
  made.end_ns = now_ns();
  return made;
}

/// What DataParallel calls replicate(): every rank's become rank 0's.
template <class T>
Status HostReplica<T>::send_parameters() {
  const auto send = [&](void* data, size_t count) {
    return run_.communicator.broadcast(data, data, count, type_of<T>(), kReplicaRoot, kStarCall);
  };
  RONDO_TRY(send(ddp_.parameters(), ddp_.parameter_elements()));
  for (size_t b = 0; b < ddp_.buffers().size(); ++b) {
    RONDO_TRY(send(ddp_.buffer(b), ddp_.buffers()[b].count()));
  }
  return {};
}

template <class T>
Status HostReplica<T>::compute(const Batch& batch, uint64_t number) {
  const Pass pass{.training = true, .seed = run_.options.seed, .step = number};
  loss_.data()[0] = 0;
  RONDO_TRY(run_.model.forward(batch, pass, &loss_.data()[0]));
  UsedParameters used(ddp_);
  RONDO_TRY(run_.model.backward(batch, pass, 1, false, used));
  // Second gradients are added here, so that they need not travel: nothing overlaps, so there is no
  // hurry for the first.
  for (size_t t = 0; t < ddp_.tensors().size(); ++t) {
    const DdpTensor& tensor = ddp_.tensors()[t];
    if (tensor.adds_to < 0) continue;
    const T* second = ddp_.template gradient<T>(t);
    T* first = ddp_.template gradient<T>(static_cast<size_t>(tensor.adds_to));
    for (size_t i = 0; i < tensor.count(); ++i) first[i] += second[i];
  }
  return {};
}

/// The loss's sum, and the gradients' mean over all loss terms, to the root.
template <class T>
Status HostReplica<T>::gather(uint64_t terms) {
  CallOptions scaled = kStarCall;
  scaled.factor = 1 / static_cast<double>(terms);
  RONDO_TRY(run_.communicator.reduce(loss_.data(), loss_.data(), 1, DataType::kFloat64,
                                     ReduceOp::kSum, kReplicaRoot, kStarCall));
  return run_.communicator.reduce(ddp_.gradients(), ddp_.gradients(), ddp_.parameter_elements(),
                                  type_of<T>(), ReduceOp::kMulSum, kReplicaRoot, scaled);
}

/// The run around a rank's replica.
template <class T>
class DataParallel {
 public:
  DataParallel(Run<T>& run, Replica& replica)
      : run_(run),
        replica_(replica),
        ddp_(run.ddp()),
        gradients_by_(run.on_device != nullptr ? *run.on_device : run.communicator),
        shares_(run.data.shape(), run.options.batch, run.reports() ? run.ranks() : 0) {}

  Status prepare();
  Strategy strategy() {
    return {.step = [this](uint64_t number, double rate) { return step(number, rate); },
            .await = [] { return Status(); },
            // Only rank 0 has the parameters of the last update.
            .settle = [this] { return replica_.replicate(); },
            .fetch = [this] { return replica_.fetch(); }};
  }
  Status finish(const End& end);

 private:
  Result<StepResult> step(uint64_t number, double rate);
  Status load();

  size_t parameter_bytes() const { return ddp_.parameter_elements() * sizeof(T); }

  Run<T>& run_;
  Replica& replica_;
  DistributedDataParallel& ddp_;
  const Communicator& gradients_by_;  // and parameters
  Shares shares_;
  std::vector<RankSamples> others_;  // root: the samples of ranks 1, 2, ...
  Trace trace_;
};

template <class T>
Status DataParallel<T>::prepare() {
  const TrainOptions& o = run_.options;
  for (uint64_t r = 1; run_.reports() && r < run_.ranks(); ++r) {
    others_.push_back(
        RONDO_TRY(RankSamples::create(o, run_.data, run_.ranks(), r, run_.samples.workers())));
    others_.back().start({});
  }
  run_.readers = (1 + others_.size()) * run_.samples.workers();
  run_.plans.assign(ddp_.layout().size(),
                    gradients_by_.plan(Collective::kReduce, ddp_.parameter_elements(), o.type(),
                                       false, Algorithm::kStar));
  trace_ = RONDO_TRY(Trace::open(o.trace, run_.communicator.rank(), {"compute", "communication"}));
  if (!run_.reports()) return {};
  spdlog::info("{}: dp, as DataParallel: rank 0 scatters samples and parameters", o.model);
  spdlog::info("bytes to each rank: samples {}, parameters {}", shares_.bytes(), parameter_bytes());
  return {};
}

template <class T>
Result<StepResult> DataParallel<T>::step(uint64_t number, double rate) {
  const int64_t begin_ns = now_ns();
  if (run_.reports()) RONDO_TRY(load());
  const int64_t loaded_ns = now_ns();
  RONDO_TRY(shares_.scatter(run_.communicator));
  const Batch batch = shares_.batch();
  // Every rank has equally many batches.
  const uint64_t terms = shares_.all_terms();
  const ReplicaStep made = RONDO_TRY(
      replica_.step({.batch = batch, .number = number, .all_terms = terms, .rate = rate}));
  trace_.span(kReplicaLane, kDpLoad, number, begin_ns, loaded_ns);
  trace_.span(kRootLane, kDpScatter, number, loaded_ns, made.scattered_ns);
  trace_.span(kReplicaLane, kDpCompute, number, made.scattered_ns, made.computed_ns);
  trace_.span(kRootLane, kDpGather, number, made.computed_ns, made.gathered_ns);
  trace_.span(kReplicaLane, kDpUpdate, number, made.gathered_ns, made.end_ns);
  const double comm_ms =
      to_ms((made.scattered_ns - loaded_ns) + (made.gathered_ns - made.computed_ns));
  const double step_ms = to_ms(made.end_ns - begin_ns), data_ms = to_ms(loaded_ns - begin_ns);
  return StepResult{.samples = terms / run_.model.loss_terms(),
                    .epoch_ended = number % run_.steps_per_epoch == 0,
                    .stops = shares_.stops(),
                    .report = StepReport{.number = number,
                                         .samples = terms / run_.model.loss_terms(),
                                         .loss = made.loss / static_cast<double>(terms),
                                         .update = made.update,
                                         .times = {.step_ms = step_ms,
                                                   .compute_ms = step_ms - comm_ms - data_ms,
                                                   .comm_ms = comm_ms,
                                                   .exposed_comm_ms = comm_ms,  // nothing hides it
                                                   .other_wait_ms = 0,
                                                   .data_wait_ms = data_ms}}};
}

/// Root: every rank's samples of this step.
template <class T>
Status DataParallel<T>::load() {
  uint64_t samples = 0;
  for (uint64_t r = 0; r < run_.ranks(); ++r) {
    RankSamples& source = r == 0 ? run_.samples : others_[r - 1];
    if (source.epoch() != run_.samples.epoch()) source.begin_epoch(run_.samples.epoch());
    const Batch batch = RONDO_TRY(source.next());
    shares_.put(r, batch);
    samples += batch.size;
  }
  const bool stops = run_.stop.load();
  for (uint64_t r = 0; r < run_.ranks(); ++r) {
    shares_.set_for_all(r, samples * run_.model.loss_terms(), stops);
  }
  return {};
}

/// The summary is ddp's, with what the star does in place of what buckets would have done.
template <class T>
Status DataParallel<T>::finish(const End& end) {
  RONDO_TRY(trace_.close(run_.communicator));
  if (!run_.reports()) return {};
  nlohmann::ordered_json all = summarize(run_.facts(), *run_.report, end.bytes_sent, end.hashes[0]);
  const Plan scattered = run_.communicator.plan(Collective::kScatter, shares_.bytes(),
                                                DataType::kUint8, false, Algorithm::kStar);
  const Plan parameters = gradients_by_.plan(Collective::kBroadcast, ddp_.parameter_elements(),
                                             run_.options.type(), false, Algorithm::kStar);
  const double gradients_us = run_.plans.front().predicted_us;
  size_t down = shares_.bytes() + parameter_bytes();
  for (const DdpTensor& buffer : ddp_.buffers()) down += buffer.count() * sizeof(T);
  all["gradient_bytes_per_step"] = parameter_bytes();
  all["bytes_formula_per_step"] = static_cast<double>((run_.ranks() - 1) * down);  // of the root
  all.erase("bytes_formula_parts");
  all["predicted_comm_us"] = scattered.predicted_us + parameters.predicted_us + gradients_us;
  all["buckets"] = nlohmann::ordered_json::array({{{"parameters", ddp_.tensors().size()},
                                                   {"bytes", parameter_bytes()},
                                                   {"algorithm", name(Algorithm::kStar)},
                                                   {"predicted_us", gradients_us}}});
  replica_.describe(all);
  return run_.report->finish(std::move(all));
}

}  // namespace

size_t dp_workers(const TrainOptions& options, const Communicator& communicator) {
  const auto ranks = static_cast<size_t>(communicator.size());
  return communicator.rank() == kReplicaRoot ? (options.workers + ranks - 1) / ranks : 0;
}

template <class T>
Status train_dp(Run<T>& run, Replica& replica) {
  DataParallel<T> dp(run, replica);
  RONDO_TRY(dp.prepare());
  RONDO_TRY(begin_run(run));
  RONDO_TRY(replica.begin());
  const End end = RONDO_TRY(make_steps(run, dp.strategy()));
  return dp.finish(end);
}

template <class T>
Status train_dp(Run<T>& run) {
  HostReplica<T> replica(run);
  return train_dp(run, replica);
}

template Status train_dp(Run<float>&);
template Status train_dp(Run<double>&);
template Status train_dp(Run<float>&, Replica&);

}  // namespace rondo::trainer
