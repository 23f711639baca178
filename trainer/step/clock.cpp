// See clock.hpp.
#include "trainer/step/clock.hpp"

#include <algorithm>
#include <utility>

#include "trainer/base/clock.hpp"
#include "trainer/optim/sharding.hpp"

namespace rondo::trainer {

StepClock::StepClock(DistributedDataParallel& ddp, Timeline timeline)
    : ddp_(ddp), timeline_(std::move(timeline)), measured_(ddp.layout().size()) {}

void StepClock::step_begins(uint64_t step) {
  number_ = step;
  timeline_.step_begins(step);
  gather_ns_ = exposed_gather_ns_ = 0;
  phase_ = StepPhase::kBegin;
  since_ns_ = now_ns();
  step_ = {.begin_ns = since_ns_};
}

void StepClock::use_layout() {
  measured_ = Measurements(ddp_.layout().size());
  timeline_.add_buckets(collectives_of(ddp_));
}

void StepClock::turns_to(StepPhase phase) {
  if (phase_ == StepPhase::kForward) forward_begins(-1);
  if (phase_ == StepPhase::kBackward)
    timeline_.layer_begins(Timeline::Direction::kBackward, -1, now_ns());
  const int64_t now = now_ns();
  switch (phase_) {
    case StepPhase::kHeaders:
      step_.begin_wait_ns = now - since_ns_;
      break;
    case StepPhase::kData:
      step_.data_wait_ns += now - since_ns_;
      timeline_.computed(Timeline::Activity::kData, since_ns_, now);
      break;
    case StepPhase::kForward:
      timeline_.computed(Timeline::Activity::kForward, since_ns_, now);
      break;
    case StepPhase::kBackward:
      step_.backward_end_ns = now;
      break;
    case StepPhase::kWait:
      step_.waits = {{since_ns_, now}};
      break;
    default:
      break;
  }
  if (phase == StepPhase::kBackward) measured_.backward_begins(now);
  phase_ = phase;
  since_ns_ = now;
}

BackwardListener& StepClock::beside(BackwardListener& next) {
  next_ = &next;
  return *this;
}

void StepClock::forward_begins(int layer) {
  timeline_.layer_begins(Timeline::Direction::kForward, layer, now_ns());
}

void StepClock::layer_begins(int layer) {
  timeline_.layer_begins(Timeline::Direction::kBackward, layer, now_ns());
  next_->layer_begins(layer);
}

void StepClock::gradient_ready(int parameter, size_t count) {
  measured_.gradient_ready(static_cast<size_t>(parameter), count, now_ns());
  next_->gradient_ready(parameter, count);
}

void StepClock::gathered() {
  const Interval wait{since_ns_, now_ns()};
  timeline_.gathered(last_update_, wait.begin_ns, wait.end_ns, ddp_.gather_times());
  UnderWay gathers({wait});
  for (size_t b = ddp_.layout().size(); b-- > 0;) gathers.add(ddp_.gather_times()[b]);
  measured_.gathered(ddp_.gather_times());
  step_.parameter_wait_ns += wait.ns();
  gather_ns_ += gathers.ns();
  exposed_gather_ns_ += gathers.exposed_ns();
}

StepTimes StepClock::step_ends(const Work::Times& loss, bool updated,
                               const std::vector<Interval>& updates) {
  const int64_t reduced_ns = since_ns_;
  turns_to(StepPhase::kNone);
  step_.end_ns = since_ns_;
  timeline_.computed(Timeline::Activity::kOptimizer, reduced_ns, step_.end_ns);
  if (updated) {
    last_update_ = number_;
    step_.waits = without(step_.waits.front(), updates);
    for (size_t b = 0; b < updates.size(); ++b) {
      timeline_.updated(b, updates[b].begin_ns, updates[b].end_ns);
    }
  }
  for (const Interval& wait : step_.waits) {
    timeline_.computed(Timeline::Activity::kWait, wait.begin_ns, wait.end_ns);
  }
  timeline_.exchanged_headers(ddp_.header_times());
  timeline_.exchanged_loss(loss);
  timeline_.communicated(ddp_.times());
  // With overlap the first bucket's turn waits for the headers, and backward with it.
  const DdpBucketTimes& first = ddp_.times().front();
  if (first.work.issued_ns < step_.backward_end_ns) {
    step_.header_wait_ns = std::max<int64_t>(
        0, std::min(ddp_.header_times().ended_ns, first.work.issued_ns) - first.ready_ns);
  }
  UnderWay reductions(step_.waits);
  for (const DdpBucketTimes& bucket : ddp_.times()) reductions.add(bucket.work);
  step_.comm_ns = reductions.ns() + gather_ns_;
  step_.exposed_ns = reductions.exposed_ns() + exposed_gather_ns_;
  measured_.step_ends(step_, ddp_.times());
  return {.step_ms = to_ms(step_.ns()),
          .compute_ms = to_ms(step_.compute_ns()),
          .comm_ms = to_ms(step_.comm_ns),
          .exposed_comm_ms = to_ms(step_.exposed_ns),
          .other_wait_ms = to_ms(step_.wait_ns() - step_.exposed_ns),
          .data_wait_ms = to_ms(step_.data_wait_ns)};
}

}  // namespace rondo::trainer
