// See prediction.hpp.
#include "trainer/report/prediction.hpp"

#include <algorithm>
#include <cmath>

#include "trainer/ddp/layout.hpp"

namespace rondo::trainer {
namespace {

constexpr double kCandidates[] = {0, 0.25, 0.5, 1, 2, 5, 10, 25, 50, 100};

double ready_ms(const StepModel& model, const DdpBucket::Piece& piece) {
  double first = model.backward_ms;
  for (const GradientTime& time : model.ready) {
    if (time.tensor == piece.tensor && time.count >= piece.end) first = std::min(first, time.ms);
  }
  return first;
}

/// Of the parameters of these buckets, each bucket's part of the update being as long as it is
/// large.
double exposed_gathers_ms(const StepModel& model, const std::vector<DdpBucket>& buckets) {
  double elements = 0, updated = 0;
  for (const DdpBucket& bucket : buckets) {
    if (model.gather_cost_ms(bucket) > 0) elements += static_cast<double>(bucket.count);
  }
  std::vector<TimedBucket> gathers;
  for (size_t b = buckets.size(); b-- > 0;) {
    const double cost_ms = model.gather_cost_ms(buckets[b]);
    if (cost_ms <= 0) continue;
    updated += static_cast<double>(buckets[b].count);
    gathers.push_back({.ready_ms = model.update_ms * updated / elements, .cost_ms = cost_ms});
  }
  return exposed_ms(gathers, model.update_ms + model.fetch_ms);
}

}  // namespace

std::vector<ReplayedBucket> replay(const std::vector<TimedBucket>& buckets, double backward_ms) {
  double finish = 0, busy = backward_ms;
  std::vector<ReplayedBucket> replayed;
  for (const TimedBucket& bucket : buckets) {
    const double launch = std::max(bucket.ready_ms, finish);
    finish = launch + bucket.cost_ms;
    replayed.push_back(
        {.launch_ms = launch, .finish_ms = finish, .exposed_ms = std::max(0.0, finish - busy)});
    busy = std::max(busy, finish) + bucket.update_ms;
  }
  return replayed;
}

double exposed_ms(const std::vector<TimedBucket>& buckets, double backward_ms) {
  double exposed = 0;
  for (const ReplayedBucket& bucket : replay(buckets, backward_ms)) exposed += bucket.exposed_ms;
  return exposed;
}

double ready_ms(const StepModel& model, const DdpBucket& bucket) {
  double last = 0;
  for (const DdpBucket::Piece& piece : bucket.pieces) last = std::max(last, ready_ms(model, piece));
  return last;
}

CapPrediction predict_cap(const StepModel& model, double cap_mb) {
  const size_t bytes = static_cast<size_t>(std::ceil(cap_mb * ddp::kBytesPerMb));
  return predict_buckets(
      model, ddp::make_layout(model.tensors, model.element_bytes, {.bytes = bytes}).buckets,
      cap_mb);
}

std::vector<TimedBucket> time_buckets(const StepModel& model,
                                      const std::vector<DdpBucket>& layout) {
  size_t parameters = 0;  // padding included
  for (const DdpBucket& bucket : layout) {
    if (model.tensors[bucket.pieces.front().tensor].adds_to < 0) parameters += bucket.count;
  }
  std::vector<bool> waits(model.tensors.size());  // no gradient before something is added to it
  for (const DdpTensor& tensor : model.tensors) {
    if (tensor.adds_to >= 0) waits[static_cast<size_t>(tensor.adds_to)] = true;
  }
  const double update_ms = model.gather_cost_ms ? 0 : model.update_ms;
  std::vector<TimedBucket> buckets;
  for (const DdpBucket& bucket : layout) {
    double share = static_cast<double>(bucket.count) / static_cast<double>(parameters);
    for (const DdpBucket::Piece& piece : bucket.pieces) {
      if (waits[piece.tensor] || model.tensors[piece.tensor].adds_to >= 0) share = 0;
    }
    buckets.push_back({.ready_ms = ready_ms(model, bucket),
                       .cost_ms = model.cost_ms(bucket),
                       .update_ms = update_ms * share});
  }
  return buckets;
}

CapPrediction predict_buckets(const StepModel& model, const std::vector<DdpBucket>& layout,
                              double cap_mb) {
  const double gathers_ms = model.gather_cost_ms ? exposed_gathers_ms(model, layout) : 0;
  return {.cap_mb = cap_mb,
          .buckets = layout.size(),
          .exposed_ms = exposed_ms(time_buckets(model, layout), model.backward_ms) + gathers_ms};
}

std::vector<CapPrediction> predict_caps(const StepModel& model) {
  size_t elements = 0;
  for (const DdpTensor& tensor : model.tensors) elements += tensor.count();
  const double all_mb = static_cast<double>(elements * model.element_bytes) / ddp::kBytesPerMb;
  std::vector<CapPrediction> predictions;
  for (const double cap_mb : kCandidates) {
    if (cap_mb < all_mb) predictions.push_back(predict_cap(model, cap_mb));
  }
  predictions.push_back(predict_cap(model, std::floor(all_mb) + 1));
  return predictions;
}

bool is_better(const CapPrediction& a, const CapPrediction& b, double backward_ms) {
  return b.exposed_ms > a.exposed_ms + std::max(0.01 * a.exposed_ms, 0.005 * backward_ms);
}

const CapPrediction& suggested(const std::vector<CapPrediction>& predictions, double backward_ms) {
  const CapPrediction& least =
      *std::min_element(predictions.begin(), predictions.end(),
                        [](const auto& a, const auto& b) { return a.exposed_ms < b.exposed_ms; });
  size_t best = 0;
  for (size_t i = 0; i < predictions.size(); ++i) {
    if (!is_better(least, predictions[i], backward_ms)) best = i;
  }
  return predictions[best];
}

}  // namespace rondo::trainer
