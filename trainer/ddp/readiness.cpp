// See readiness.hpp.
#include "trainer/ddp/readiness.hpp"

#include <algorithm>
#include <utility>

namespace rondo::ddp {

int64_t middle(std::vector<int64_t> values) {
  const auto half = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

void ReadinessLog::ready(size_t tensor, size_t count, int64_t ns) {
  if (now_.reports.empty()) now_.begin_ns = ns;
  now_.reports.push_back({.tensor = tensor, .count = count, .ns = ns - now_.begin_ns});
}

void ReadinessLog::step_ends(const std::vector<DdpBucketTimes>& buckets, int64_t update_ns) {
  now_.update_ns = update_ns;
  int64_t last_ended = 0;
  for (const DdpBucketTimes& bucket : buckets) {
    // It could not begin before it was issued and the one before it had ended.
    const Work::Times& work = bucket.work;
    const int64_t turn = std::max({work.issued_ns, work.started_ns, last_ended});
    now_.transfers_ns.push_back(std::max<int64_t>(0, work.ended_ns - turn));
    last_ended = work.ended_ns;
  }
  if (steps_.size() == kKept) steps_.erase(steps_.begin());
  steps_.push_back(std::exchange(now_, {}));
}

void ReadinessLog::keep_last(size_t count) {
  if (steps_.size() > count)
    steps_.erase(steps_.begin(), steps_.end() - static_cast<ptrdiff_t>(count));
}

std::vector<size_t> ReadinessLog::reported_parts(size_t tensor) const {
  std::vector<size_t> counts;
  for (const PartReport& report : steps_.back().reports) {
    if (report.tensor == tensor && report.count > 0) counts.push_back(report.count);
  }
  return counts;
}

int64_t ReadinessLog::ready_ns(const std::vector<DdpTensor>& tensors, const BucketLayout& layout,
                               size_t begin, size_t end) const {
  std::vector<int64_t> of_steps;
  for (const NotedStep& step : steps_) {
    int64_t last = 0;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const size_t offset = layout.offsets[t], count = tensors[t].count();
      if (offset + count <= begin || offset >= end) continue;
      const size_t needed = std::min(end - offset, count);
      int64_t first = step.backward_ns;
      for (const PartReport& report : step.reports) {
        if (report.tensor == t && report.count >= needed) first = std::min(first, report.ns);
      }
      last = std::max(last, first);
    }
    of_steps.push_back(last);
  }
  return middle(of_steps);
}

int64_t ReadinessLog::backward_ns() const {
  std::vector<int64_t> of_steps;
  for (const NotedStep& step : steps_) of_steps.push_back(step.backward_ns);
  return middle(of_steps);
}

int64_t ReadinessLog::update_ns() const {
  std::vector<int64_t> of_steps;
  for (const NotedStep& step : steps_) of_steps.push_back(step.update_ns);
  return middle(of_steps);
}

std::vector<int64_t> ReadinessLog::transfers_ns() const {
  std::vector<int64_t> all;
  for (const NotedStep& step : steps_) {
    all.insert(all.end(), step.transfers_ns.begin(), step.transfers_ns.end());
  }
  return all;
}

}  // namespace rondo::ddp
