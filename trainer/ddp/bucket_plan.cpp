// See bucket_plan.hpp.
#include "trainer/ddp/bucket_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

namespace rondo::ddp {
namespace {

/// A model with what the search asks for again and again.
class Costs {
 public:
  explicit Costs(const BucketModel& model)
      : units_(model.units), ready_ns_(units_.size() + 1), updates_after_(units_.size() + 1) {
    const size_t n = units_.size();
    for (size_t i = 0; i < n; ++i) ready_ns_[i + 1] = std::max(ready_ns_[i], units_[i].ready_ns);
    for (size_t i = n; i-- > 0;) updates_after_[i] = updates_after_[i + 1] + units_[i].update_ns;
    least_end_ns_ = model.backward_ns + updates_after_[0];
    costs_.resize((n + 1) * (n + 1));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = i + 1; j <= n; ++j) {
        costs_[i * (n + 1) + j] =
            j == i + 1 && alone(i) ? units_[i].alone_ns : model.cost_ns(offset(j) - offset(i));
      }
    }
  }

  size_t count() const { return units_.size(); }
  bool alone(size_t unit) const { return units_[unit].alone_ns >= 0; }
  size_t offset(size_t unit) const { return unit == 0 ? 0 : units_[unit - 1].end; }
  /// Of the bucket of units [i, j), the one before having ended then.
  int64_t finish_ns(size_t i, size_t j, int64_t before_ns) const {
    return std::max(ready_ns_[j], before_ns) + costs_[i * (units_.size() + 1) + j];
  }
  int64_t updates_from(size_t unit) const { return updates_after_[unit]; }
  int64_t least_end_ns() const { return least_end_ns_; }

 private:
  const std::vector<BucketUnit>& units_;
  std::vector<int64_t> ready_ns_;       // by number of units: when all of these are final
  std::vector<int64_t> updates_after_;  // by first unit: the updates from there on
  std::vector<int64_t> costs_;
  int64_t least_end_ns_ = 0;
};

/// One way to cut the first units into so many buckets.
struct CutLabel {
  int64_t finish_ns, end_ns;  // of the last bucket; of the step, as far as these decide it
  size_t from, before;        // first unit of the last bucket; label of the units before it
};

/// Only a label that is worse in both is never part of the best.
void keep_best(std::vector<CutLabel>& labels) {
  std::sort(labels.begin(), labels.end(), [](const CutLabel& a, const CutLabel& b) {
    return a.finish_ns != b.finish_ns ? a.finish_ns < b.finish_ns : a.end_ns < b.end_ns;
  });
  int64_t least = std::numeric_limits<int64_t>::max();
  std::erase_if(labels, [&](const CutLabel& label) {
    if (label.end_ns >= least) return true;
    least = label.end_ns;
    return false;
  });
}

using CutLabels = std::vector<std::vector<CutLabel>>;  // by number of units

/// Extends ways to cut with one more bucket.
CutLabels with_one_more(const Costs& costs, const CutLabels& fewer) {
  CutLabels labels(fewer.size());
  for (size_t j = 1; j <= costs.count(); ++j) {
    for (size_t i = j; i-- > 0;) {
      if (i + 1 < j && (costs.alone(i) || costs.alone(j - 1))) break;
      for (size_t l = 0; l < fewer[i].size(); ++l) {
        const int64_t finish = costs.finish_ns(i, j, fewer[i][l].finish_ns);
        labels[j].push_back({.finish_ns = finish,
                             .end_ns = std::max(fewer[i][l].end_ns, finish + costs.updates_from(i)),
                             .from = i,
                             .before = l});
      }
    }
    keep_best(labels[j]);
  }
  return labels;
}

/// The best way to cut all units into as many buckets as there are entries after the first.
std::vector<size_t> chosen_ends(const Costs& costs, const std::vector<CutLabels>& labels) {
  std::vector<size_t> ends;
  size_t unit = costs.count();
  // Of the last labels the one that ends first is the last.
  size_t label = labels.back()[unit].size() - 1;
  for (size_t k = labels.size(); k-- > 1;) {
    ends.push_back(costs.offset(unit));
    const CutLabel& chosen = labels[k][unit][label];
    unit = chosen.from;
    label = chosen.before;
  }
  std::reverse(ends.begin(), ends.end());
  return ends;
}

constexpr double kSlack = 1.5;

BucketModel with_slack(BucketModel model) {
  for (BucketUnit& unit : model.units) {
    if (unit.alone_ns >= 0)
      unit.alone_ns = std::llround(kSlack * static_cast<double>(unit.alone_ns));
  }
  model.cost_ns = [cost = std::move(model.cost_ns)](size_t elements) {
    return std::llround(kSlack * static_cast<double>(cost(elements)));
  };
  return model;
}

}  // namespace

int64_t exposed_ns(const BucketModel& model, const std::vector<size_t>& ends) {
  const Costs costs(model);
  int64_t finish = 0, end_ns = costs.least_end_ns();
  size_t first = 0;
  for (const size_t end : ends) {
    size_t last = first;
    while (costs.offset(last) < end) ++last;
    finish = costs.finish_ns(first, last, finish);
    end_ns = std::max(end_ns, finish + costs.updates_from(first));
    first = last;
  }
  return end_ns - costs.least_end_ns();
}

int64_t noticeable_ns(const BucketModel& model, int64_t least_ns) {
  return std::max(least_ns / 100, model.backward_ns / 200);
}

BucketPlan cut_buckets(const BucketModel& model) {
  const Costs costs(model);
  const size_t n = costs.count();
  const auto alone = static_cast<size_t>(std::count_if(
      model.units.begin(), model.units.end(), [](const auto& unit) { return unit.alone_ns >= 0; }));
  constexpr size_t kPatience = 8;  // buckets more that gain nothing
  std::vector<CutLabels> labels(1, CutLabels(n + 1));
  labels[0][0].push_back({.finish_ns = 0, .end_ns = costs.least_end_ns(), .from = 0, .before = 0});
  std::vector<std::optional<int64_t>> exposed(1);  // by number of buckets
  size_t best = 0;
  while (exposed.size() <= std::min(n, kMostBuckets + alone) &&
         (best == 0 || exposed.size() <= best + kPatience)) {
    labels.push_back(with_one_more(costs, labels.back()));
    const std::vector<CutLabel>& whole = labels.back()[n];
    exposed.emplace_back();
    if (whole.empty()) continue;
    exposed.back() = whole.back().end_ns - costs.least_end_ns();
    if (best == 0 || *exposed.back() < *exposed[best]) best = exposed.size() - 1;
  }
  size_t fewest = 1;
  const int64_t most = *exposed[best] + noticeable_ns(model, *exposed[best]);
  while (!exposed[fewest] || *exposed[fewest] > most) ++fewest;
  labels.resize(fewest + 1);
  return {.ends = chosen_ends(costs, labels), .exposed_ns = *exposed[fewest]};
}

ChosenEnds choose_ends(const BucketModel& model, const std::vector<size_t>& present) {
  const BucketModel slack = with_slack(model);
  const BucketPlan best = cut_buckets(slack);
  ChosenEnds chosen{.ends = present, .exposed_before_ns = exposed_ns(model, present)};
  const int64_t slack_before_ns = exposed_ns(slack, present);
  if (best.exposed_ns + noticeable_ns(slack, best.exposed_ns) < slack_before_ns &&
      exposed_ns(model, best.ends) <= chosen.exposed_before_ns) {
    chosen.ends = best.ends;
  }
  chosen.exposed_ns = exposed_ns(model, chosen.ends);
  return chosen;
}

double CostCurve::predicted_ns(size_t elements) const {
  const auto above = std::lower_bound(
      points_.begin(), points_.end(), elements,
      [](const PricedSize& point, size_t count) { return point.elements < count; });
  if (above == points_.begin()) return above->predicted_ns;
  if (above == points_.end()) {
    return points_.back().predicted_ns * static_cast<double>(elements) /
           static_cast<double>(points_.back().elements);
  }
  const PricedSize& below = above[-1];
  const double share = static_cast<double>(elements - below.elements) /
                       static_cast<double>(above->elements - below.elements);
  return below.predicted_ns + share * (above->predicted_ns - below.predicted_ns);
}

void CostCurve::correct(const std::vector<std::pair<size_t, int64_t>>& measured) {
  const auto n = static_cast<double>(measured.size());
  double p = 0, m = 0, pp = 0, pm = 0;
  for (const auto& [elements, ns] : measured) {
    const double predicted = predicted_ns(elements), took = static_cast<double>(ns);
    p += predicted;
    m += took;
    pp += predicted * predicted;
    pm += predicted * took;
  }
  if (p <= 0 || m <= 0) return;
  ratio_ = m / p;
  offset_ns_ = 0;
  const double spread = n * pp - p * p;
  if (spread <= 1e-6 * n * pp) return;  // all of one size: nothing tells the two apart
  const double ratio = (n * pm - p * m) / spread, offset = (m - ratio * p) / n;
  if (ratio < 0 || offset < 0) return;
  ratio_ = ratio;
  offset_ns_ = offset;
}

int64_t CostCurve::operator()(size_t elements) const {
  return std::llround(offset_ns_ + ratio_ * predicted_ns(elements));
}

}  // namespace rondo::ddp
