// See accounting.hpp.
#include "trainer/report/accounting.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>

#include "trainer/optim/sharding.hpp"
#include "trainer/report/prediction.hpp"

namespace rondo::trainer {
namespace {

using Json = nlohmann::ordered_json;

/// For a sentence.
std::string members_in_words(const DdpBucket& bucket, const std::vector<DdpTensor>& tensors) {
  constexpr size_t kNamed = 2;
  std::string members;
  for (size_t p = 0; p < std::min(kNamed, bucket.pieces.size()); ++p) {
    const DdpBucket::Piece& piece = bucket.pieces[p];
    const DdpTensor& tensor = tensors[piece.tensor];
    members += (p == 0 ? "" : ", ") + tensor.name;
    if (tensor.adds_to >= 0) {
      members += " rows";
    } else if (piece.end - piece.begin != tensor.count()) {
      members += " in part";
    }
  }
  if (bucket.pieces.size() > kNamed) {
    members += fmt::format(" and {} more", bucket.pieces.size() - kNamed);
  }
  return members;
}

bool is_rows(const DdpBucket& bucket, const std::vector<DdpTensor>& tensors) {
  return tensors[bucket.pieces.front().tensor].adds_to >= 0;
}

/// What travelling costs in this run: the prediction for its size, by as much as the run's own
/// buckets took more or less than theirs.
class Prices {
 public:
  explicit Prices(const Evidence& e) : e_(e) {
    const auto& layout = e.facts.ddp.layout();
    // What the control run took, shared out as the run's own buckets took it.
    const double reduced_ms = std::accumulate(e.all.costs_ms.begin(), e.all.costs_ms.end(), 0.0);
    const double alone =
        e.control.steps > 0 && reduced_ms > 0 ? e.control.cost_ms / reduced_ms : 1.0;
    double all_ms = 0, reductions_ms = 0, predicted_ms = 0, reductions_predicted_ms = 0;
    double gathers_ms = 0, gathers_predicted_ms = 0;
    for (size_t b = 0; b < layout.size(); ++b) {
      if (is_rows(layout[b], e.facts.ddp.tensors())) {
        // It travels as touched rows, alone with any cap: it costs what it cost.
        rows_ms_[layout[b].pieces.front().tensor] = alone * e.all.costs_ms[b];
        continue;
      }
      reductions_ms += alone * e.all.costs_ms[b];
      all_ms += alone * e.all.costs_ms[b] + e.all.gather_costs_ms[b];
      predicted_ms += e.facts.plans[b].predicted_us / 1e3;
      reductions_predicted_ms += predicted(layout[b].count);
      gathers_ms += e.all.gather_costs_ms[b];
      if (e.facts.ddp.is_sharded()) gathers_predicted_ms += predicted_gather(layout[b].count);
    }
    if (gathers_ms > 0 && gathers_predicted_ms > 0)
      gather_ratio_ = gathers_ms / gathers_predicted_ms;
    if (predicted_ms > 0 && all_ms > 0) ratio_ = all_ms / predicted_ms;
    if (reductions_predicted_ms > 0 && reductions_ms > 0) {
      reduction_ratio_ = reductions_ms / reductions_predicted_ms;
    }
  }

  /// Measured over predicted, gathers included.
  double ratio() const { return ratio_; }
  /// Milliseconds that `count` gradients take.
  double of(size_t count) const { return reduction_ratio_ * predicted(count); }
  double of(const DdpBucket& bucket) const {
    const auto found = rows_ms_.find(bucket.pieces.front().tensor);
    return found != rows_ms_.end() ? found->second : of(bucket.count);
  }
  /// With shards: what gathering this bucket's parameters takes.
  double of_gather(const DdpBucket& bucket) const {
    if (is_rows(bucket, e_.facts.ddp.tensors())) return 0;
    return gather_ratio_ * predicted_gather(bucket.count);
  }

 private:
  double predicted(size_t count) const {
    return plan_reduction(e_.communicator, count, e_.facts.ddp.is_sharded(),
                          e_.facts.options.wire_type(), e_.direct)
               .predicted_us /
           1e3;
  }

  double predicted_gather(size_t count) const {
    return plan_gather(e_.communicator, count, e_.facts.options.type(), e_.direct).predicted_us /
           1e3;
  }

  const Evidence& e_;
  double ratio_ = 1, reduction_ratio_ = 1, gather_ratio_ = 1;
  std::map<size_t, double> rows_ms_;  // by tensor
};

double number_or(const Json& value, double otherwise) {
  return value.is_null() ? otherwise : value.get<double>();
}

Json to_json(const BucketMedians& b) {
  return {{"ready_ms", b.ready_ms},       {"waited_ms", b.waited_ms}, {"queued_ms", b.queued_ms},
          {"transfer_ms", b.transfer_ms}, {"hidden_ms", b.hidden_ms}, {"exposed_ms", b.exposed_ms}};
}

/// A step's times, and what the run itself shows of communication.
struct StepEvidence {
  double measured_ms, disturbed_ms, optimizer_ms;
  double costs_ms, gathers_ms;
  const ControlTimes& control;
};

Json whole_step(const StepEvidence& e) {
  double compute_ms = e.disturbed_ms, cost_ms = e.costs_ms + e.gathers_ms;
  Json slowed, contention;
  if (e.control.steps > 0) {
    compute_ms = e.control.pass_ms + e.optimizer_ms;
    cost_ms = e.control.cost_ms + e.gathers_ms;
    slowed = e.disturbed_ms - compute_ms;
    contention = compute_ms > 0 ? e.disturbed_ms / compute_ms - 1 : 0.0;
  }
  return {{"compute_ms", compute_ms},
          {"cost_ms", cost_ms},
          {"sum_ms", compute_ms + cost_ms},
          {"max_ms", std::max(compute_ms, cost_ms)},
          {"measured_ms", e.measured_ms},
          {"slowed_ms", std::move(slowed)},
          {"contention", std::move(contention)},
          {"control_steps", e.control.steps}};
}

/// Completes the summary with the time that overlap saves. It stays null without control steps, and
/// if communication takes so little that the noise of computing would drown it.
void account_hidden(Json& summary) {
  const Json& step = summary["accounting"];
  if (step["slowed_ms"].is_null() || !summary["hidden_comm_ms"].is_null()) return;
  constexpr double kLeastShare = 0.05;
  const double cost_ms = step["cost_ms"];
  if (cost_ms <= kLeastShare * step["compute_ms"].get<double>()) return;
  // Communication does not speed computing up: something has disturbed the control steps.
  if (step["slowed_ms"] < -kLeastShare * step["measured_ms"].get<double>()) return;
  const double saved_ms = step["sum_ms"].get<double>() - step["measured_ms"].get<double>();
  const double hidden_ms = std::min(saved_ms, cost_ms);  // more was never spent on communication
  summary["hidden_comm_ms"] = hidden_ms;
  summary["hidden_fraction"] = hidden_ms / cost_ms;
}

/// When each was final, in that order.
Json gradients_of(const Evidence& e) {
  std::vector<GradientTime> times = e.measured.gradients();
  std::stable_sort(times.begin(), times.end(),
                   [](const GradientTime& a, const GradientTime& b) { return a.ms < b.ms; });
  Json gradients = Json::array();
  for (const GradientTime& time : times) {
    gradients.push_back({{"tensor", e.facts.ddp.tensors()[time.tensor].name},
                         {"elements", time.count},
                         {"ready_ms", time.ms}});
  }
  return gradients;
}

/// In the order in which they lie in buckets, so that another program can lay buckets out.
Json tensors_of(const Evidence& e) {
  Json tensors = Json::array();
  for (const DdpTensor& tensor : e.facts.ddp.tensors()) {
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
    if (tensor.adds_to >= 0) tensors.back()["adds_to"] = tensor.adds_to;
  }
  return tensors;
}

Json config_cap(const TrainOptions& options) { return to_json(options)["bucket_cap_mb"]; }

std::string cap_in_words(const TrainOptions& options) {
  return options.auto_buckets() ? "auto" : fmt::format("{}", options.bucket_cap_mb);
}

struct Suggestion {
  double gain_ms = 0;
  std::string sentence;
};

/// The table of caps, the best of them, and what it is predicted to gain.
Suggestion suggest_cap(const Evidence& e, const Prices& prices, Json& summary) {
  StepModel model{.tensors = e.facts.ddp.tensors(),
                  .element_bytes = size_of(e.facts.options.type()),
                  .ready = {},
                  .backward_ms = e.measured.backward_ms(),
                  .cost_ms = [&](const DdpBucket& bucket) { return prices.of(bucket); },
                  .update_ms = e.updates_along ? e.measured.optimizer_ms() : 0};
  // With --no-overlap all buckets wait for the end of backward, in the replay as in the run.
  if (!e.facts.options.no_overlap) model.ready = e.measured.gradients();
  if (e.facts.ddp.is_sharded()) {
    model.gather_cost_ms = [&](const DdpBucket& bucket) { return prices.of_gather(bucket); };
    model.update_ms = e.measured.optimizer_ms();
    model.fetch_ms = summary["data_wait_ms"];
  }
  const std::vector<CapPrediction> predictions = predict_caps(model);
  Json rows = Json::array();
  for (const CapPrediction& p : predictions) {
    rows.push_back({{"cap_mb", p.cap_mb}, {"buckets", p.buckets}, {"exposed_ms", p.exposed_ms}});
  }
  const CapPrediction& best = suggested(predictions, model.backward_ms);
  const CapPrediction now =
      predict_buckets(model, e.facts.ddp.layout(), e.facts.options.bucket_cap_mb);
  const bool gains = is_better(best, now, model.backward_ms);
  const double gain_ms = gains ? now.exposed_ms - best.exposed_ms : 0;
  summary["cap_predictions"] = std::move(rows);
  summary["suggested_bucket_cap_mb"] = gains ? Json(best.cap_mb) : config_cap(e.facts.options);
  summary["suggested_gain_ms"] = gain_ms;
  const auto buckets = [](const CapPrediction& p) {
    return fmt::format("{} bucket{}", p.buckets, p.buckets == 1 ? "" : "s");
  };
  if (e.facts.ddp.relayout().pending) {
    return {.gain_ms = gain_ms,
            .sentence = fmt::format(
                "--bucket-cap-mb auto has not laid buckets out: it does so after {} steps, which "
                "this run did not make; with those of the beginning, {}, it is predicted to expose "
                "{:.2f} ms per step",
                DdpOptions{}.auto_after_steps, buckets(now), now.exposed_ms)};
  }
  if (!gains) {
    return {
        .gain_ms = 0,
        .sentence = fmt::format("--bucket-cap-mb {} is right: {}, predicted to expose {:.2f} "
                                "ms per step; no other cap is predicted to expose noticeably less",
                                cap_in_words(e.facts.options), buckets(now), now.exposed_ms)};
  }
  return {
      .gain_ms = gain_ms,
      .sentence = fmt::format("--bucket-cap-mb {}, {}, predicted to expose {:.2f} ms per step; {} "
                              "exposes {:.2f} by the same model",
                              best.cap_mb, buckets(best), best.exposed_ms,
                              cap_in_words(e.facts.options), now.exposed_ms)};
}

}  // namespace

namespace {

using Table = std::vector<std::vector<double>>;  // by rank

/// As many of every rank.
Result<Table> gather(Communicator& communicator, const std::vector<double>& mine) {
  Table table(static_cast<size_t>(communicator.size()));
  std::vector<double> all(mine.size() * table.size());
  if (all.empty()) return table;
  RONDO_TRY(communicator.all_gather(mine.data(), all.data(), mine.size(), DataType::kFloat64));
  for (size_t r = 0; r < table.size(); ++r) {
    const double* begin = all.data() + r * mine.size();
    table[r].assign(begin, begin + mine.size());
  }
  return table;
}

}  // namespace

Result<AllRanks> compare_ranks(Communicator& communicator, const Measurements& measured) {
  const Table arrivals = RONDO_TRY(gather(communicator, measured.arrivals_ms()));
  const Table transfers = RONDO_TRY(gather(communicator, measured.transfers_ms()));
  const Table gathers = RONDO_TRY(gather(communicator, measured.gathers_ms()));
  const Table exposed = RONDO_TRY(gather(communicator, measured.exposed_ms()));
  const size_t buckets = measured.buckets().size();
  return AllRanks{.lateness = lateness(arrivals),
                  .costs_ms = costs_ms(transfers, buckets),
                  .gather_costs_ms = costs_ms(gathers, buckets),
                  .exposed_cost_ms = costs_ms(exposed, 1).front()};
}

namespace {

/// Completes each bucket of the summary; what diagnose() reads of them.
std::vector<ObservedBucket> account_buckets(const Evidence& e, Json& buckets) {
  const DistributedDataParallel& ddp = e.facts.ddp;
  const std::vector<BucketMedians> medians = e.measured.buckets();
  std::vector<ObservedBucket> observed;
  for (size_t b = 0; b < medians.size(); ++b) {
    buckets[b].update(to_json(medians[b]));
    buckets[b]["cost_ms"] = e.all.costs_ms[b];
    if (ddp.is_sharded()) {
      buckets[b]["gather_ms"] = medians[b].gather_ms;
      buckets[b]["gather_cost_ms"] = e.all.gather_costs_ms[b];
    }
    observed.push_back({.bytes = e.facts.bytes_of(ddp.layout()[b].count),
                        .ready_ms = medians[b].ready_ms,
                        .cost_ms = e.all.costs_ms[b],
                        .members = members_in_words(ddp.layout()[b], ddp.tensors())});
  }
  return observed;
}

}  // namespace

void account(const Evidence& e, Json& summary) {
  summary["accounting"] =
      whole_step({.measured_ms = e.measured.step_ms(),
                  .disturbed_ms = e.measured.compute_ms(),
                  .optimizer_ms = e.measured.optimizer_ms(),
                  .costs_ms = std::accumulate(e.all.costs_ms.begin(), e.all.costs_ms.end(), 0.0),
                  .gathers_ms = e.all.gathers_ms(),
                  .control = e.control});
  account_hidden(summary);
  const Prices prices(e);
  Suggestion suggestion;
  if (e.facts.ranks > 1) suggestion = suggest_cap(e, prices, summary);
  std::optional<double> hidden;
  if (!summary["hidden_fraction"].is_null()) hidden = summary["hidden_fraction"];
  const double exposed_ms = summary["exposed_comm_ms"];
  const Observed observed{.ranks = static_cast<size_t>(e.facts.ranks),
                          .overlap = !e.facts.options.no_overlap,
                          .step_ms = summary["step_ms"],
                          .data_wait_ms = summary["data_wait_ms"],
                          .backward_ms = e.measured.backward_ms(),
                          .compute_ms = summary["accounting"]["compute_ms"],
                          .slowed_ms = number_or(summary["accounting"]["slowed_ms"], 0),
                          .hidden_fraction = hidden,
                          .exposed_ms = exposed_ms + summary["other_wait_ms"].get<double>(),
                          .gather_wait_ms = e.measured.parameter_wait_ms(),
                          .latency_ms = prices.of(16),
                          .cap_gain_ms = suggestion.gain_ms,
                          .buckets = account_buckets(e, summary["buckets"]),
                          .lateness = e.all.lateness};
  summary["exposed_cost_ms"] = e.all.exposed_cost_ms;
  summary["tensors"] = tensors_of(e);
  summary["gradients"] = gradients_of(e);
  summary["backward_ms"] = e.measured.backward_ms();
  summary["update_ms"] = e.updates_along ? e.measured.optimizer_ms() : 0;
  summary["last_rank"] = {{"rank", e.all.lateness.rank},
                          {"share", e.all.lateness.share},
                          {"late_ms", e.all.lateness.late_ms},
                          {"spread_ms", e.all.lateness.spread_ms}};
  summary["measured_over_predicted"] = prices.ratio();
  summary["diagnosis"] = diagnose(observed);
  if (!suggestion.sentence.empty()) summary["suggestion"] = suggestion.sentence;
}

void account_on_device(const ControlTimes& control, double optimizer_ms, Json& summary) {
  summary["accounting"] = whole_step(
      {.measured_ms = summary["step_ms"].get<double>() - summary["data_wait_ms"].get<double>(),
       .disturbed_ms = summary["compute_ms"],
       .optimizer_ms = optimizer_ms,
       .costs_ms = 0,
       .gathers_ms = 0,
       .control = control});
  account_hidden(summary);
}

}  // namespace rondo::trainer
