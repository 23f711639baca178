// See measurements.hpp.
#include "trainer/report/measurements.hpp"

#include <algorithm>

#include "trainer/base/clock.hpp"
#include "trainer/report/report.hpp"

namespace rondo::trainer {
namespace {

/// When its transfer could begin: it had been issued, and the one before it had ended.
int64_t turn_of(const Work::Times& work, int64_t last_ended) {
  return std::clamp(std::max(work.started_ns, last_ended), work.issued_ns,
                    std::max(work.issued_ns, work.ended_ns));
}

}  // namespace

void Series::add(double value) {
  if (values_.size() < kLast) {
    values_.push_back(value);
  } else {
    values_[next_++ % kLast] = value;
  }
}

void UnderWay::add(const Work::Times& times) {
  const int64_t begin = std::max(until_, times.issued_ns);
  if (times.ended_ns <= begin) return;
  until_ = times.ended_ns;
  ns_ += until_ - begin;
  exposed_ns_ += within(waits_, begin, until_);
}

double Series::median() const { return trainer::median(values_); }

void Measurements::backward_begins(int64_t ns) {
  backward_begin_ns_ = ns;
  step_gradients_.clear();
}

void Measurements::gradient_ready(size_t tensor, size_t count, int64_t ns) {
  step_gradients_.push_back(
      {.tensor = tensor, .count = count, .ms = to_ms(ns - backward_begin_ns_)});
}

void Measurements::step_ends(const StepMoments& step, const std::vector<DdpBucketTimes>& buckets) {
  for (const GradientTime& time : step_gradients_) {
    gradients_[{time.tensor, time.count}].add(time.ms);
  }
  int64_t last_ended = 0;
  for (size_t b = 0; b < buckets.size() && b < buckets_.size(); ++b) {
    const Work::Times& work = buckets[b].work;
    const int64_t turn = turn_of(work, last_ended);
    const int64_t exposed = within(step.waits, turn, work.ended_ns);
    buckets_[b].ready.add(to_ms(buckets[b].ready_ns - backward_begin_ns_));
    buckets_[b].waited.add(to_ms(work.issued_ns - buckets[b].ready_ns));
    buckets_[b].queued.add(to_ms(turn - work.issued_ns));
    buckets_[b].transfer.add(to_ms(work.ended_ns - turn));
    buckets_[b].hidden.add(to_ms(work.ended_ns - turn - exposed));
    buckets_[b].exposed.add(to_ms(exposed));
    last_ended = work.ended_ns;
  }
  compute_.add(to_ms(step.compute_ns()));
  backward_.add(to_ms(step.backward_end_ns - backward_begin_ns_));
  optimizer_.add(to_ms(step.end_ns - step.backward_end_ns - sum_ns(step.waits)));
  exposed_.add(to_ms(step.exposed_ns));
  parameter_wait_.add(to_ms(step.parameter_wait_ns));
  step_.add(to_ms(step.ns() - step.data_wait_ns));
  const int64_t together = last_reduced_ns_ != 0 ? last_reduced_ns_ : step.begin_ns;
  arrivals_.add(to_ms(step.backward_end_ns - together));
  last_reduced_ns_ = last_ended;
}

void Measurements::gathered(const std::vector<Work::Times>& buckets) {
  int64_t last_ended = 0;
  for (size_t b = std::min(buckets.size(), buckets_.size()); b-- > 0;) {
    buckets_[b].gather.add(to_ms(buckets[b].ended_ns - turn_of(buckets[b], last_ended)));
    last_ended = std::max(last_ended, buckets[b].ended_ns);
  }
}

std::vector<GradientTime> Measurements::gradients() const {
  std::vector<GradientTime> times;
  for (const auto& [key, series] : gradients_) {
    times.push_back({.tensor = key.first, .count = key.second, .ms = series.median()});
  }
  return times;
}

std::vector<double> Measurements::all_of(Series BucketSeries::*field) const {
  std::vector<double> all;
  for (const BucketSeries& bucket : buckets_) {
    const std::vector<double>& values = (bucket.*field).values();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<double> Measurements::transfers_ms() const { return all_of(&BucketSeries::transfer); }
std::vector<double> Measurements::gathers_ms() const { return all_of(&BucketSeries::gather); }

std::vector<BucketMedians> Measurements::buckets() const {
  std::vector<BucketMedians> medians;
  for (const BucketSeries& b : buckets_) {
    medians.push_back({.ready_ms = b.ready.median(),
                       .waited_ms = b.waited.median(),
                       .queued_ms = b.queued.median(),
                       .transfer_ms = b.transfer.median(),
                       .hidden_ms = b.hidden.median(),
                       .exposed_ms = b.exposed.median(),
                       .gather_ms = b.gather.median()});
  }
  return medians;
}

}  // namespace rondo::trainer
