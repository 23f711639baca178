// See device_clock.hpp.
#include "trainer/step/device_clock.hpp"

#include <algorithm>
#include <utility>

#include "trainer/base/clock.hpp"
#include "trainer/optim/sharding.hpp"

namespace rondo::trainer {

DeviceClock::DeviceClock(Device& device, DistributedDataParallel* ddp, Timeline timeline,
                         bool draws)
    : device_(device), ddp_(ddp), timeline_(std::move(timeline)), draws_(draws) {
  if (ddp == nullptr) return;
  use_layout(ddp->layout().size());
  ddp->mark_transfers([this](const DdpTransferMark& here) { mark_transfer(here); });
}

DeviceClock::~DeviceClock() {
  if (ddp_ != nullptr) ddp_->mark_transfers({});
  (void)device_.wait();
  for (const Marks& step : steps_) {
    for (const Mark& mark : step.marks) device_.note(device_.cuda().destroy_event(mark.event));
  }
}

void DeviceClock::step_begins(uint64_t number) {
  now_ = &steps_[number % kSteps];
  now_->used = 0;
  now_->replayed = false;
  now_->host_begin_ns = 0;
  now_->buckets = ddp_ != nullptr ? ddp_->layout().size() : 0;
  notes_ = true;
  mark(kBegins);
  if (std::exchange(pauses_, false)) take_host_time();
}

/// Of the begin, again, when nothing is before it on the stream: the host sees at once that it happens.
void DeviceClock::take_host_time() {
  if (!device_.status().ok() || !device_.await(now_->marks[0].event).ok()) return;
  now_->used = 0;
  mark(kBegins);
  if (device_.await(now_->marks[0].event).ok()) now_->host_begin_ns = now_ns();
}

void DeviceClock::forward_begins(int layer) {
  if (draws_) mark(kForwardLayer, layer);
}

void DeviceClock::backward_layer_begins(int layer) {
  if (draws_) mark(kBackwardLayer, layer);
}

void DeviceClock::mark_transfer(const DdpTransferMark& here) {
  constexpr MarkKind kKinds[2][3] = {{kReduceReady, kReduceStarted, kReduceEnded},
                                     {kGatherReady, kGatherStarted, kGatherEnded}};
  mark(kKinds[here.gathers ? 1 : 0][static_cast<size_t>(here.at)], static_cast<int>(here.bucket),
       here.stream);
}

void DeviceClock::mark(MarkKind kind, int index, Device::Stream stream) {
  if (!notes_ || !device_.status().ok()) return;
  if (now_->used == now_->marks.size()) {
    Result<Device::Event> made = device_.cuda().create_timed_event();
    if (!made.ok()) return device_.note(made.status());
    now_->marks.push_back({.event = *made});
  }
  Mark& mark = now_->marks[now_->used++];
  mark.kind = kind;
  mark.index = index;
  mark.computes = stream == device_.stream();
  device_.note(device_.cuda().record(mark.event, stream));
}

Device::Event DeviceClock::step_ends() {
  mark(kEnds);
  notes_ = false;
  return now_->used == 0 ? nullptr : now_->marks[now_->used - 1].event;
}

Result<int64_t> DeviceClock::ns_between(Device::Event from, Device::Event to) {
  const float ms = RONDO_TRY(device_.cuda().elapsed_ms(from, to));
  return static_cast<int64_t>(double{ms} * 1e6);
}

void DeviceClock::read(Marks& step) {
  Mark& begin = step.marks[0];
  if (step.host_begin_ns != 0) {
    begin.ns = std::max(step.host_begin_ns, last_end_ns_);  // clocks drift
  } else {
    const Result<int64_t> idle_ns = ns_between(last_end_, begin.event);
    if (!idle_ns.ok()) return device_.note(idle_ns.status());
    begin.ns = last_end_ns_ + std::max<int64_t>(*idle_ns, 0);
  }
  int64_t last_ns[2] = {begin.ns, 0};  // on each stream
  for (size_t i = 1; i < step.used; ++i) {
    Mark& mark = step.marks[i];
    const Result<int64_t> since_ns = ns_between(begin.event, mark.event);
    if (!since_ns.ok()) return device_.note(since_ns.status());
    int64_t& last = last_ns[mark.computes ? 0 : 1];
    mark.ns = std::max(begin.ns + *since_ns, last + 1);
    last = mark.ns;
  }
  last_end_ = step.marks[step.used - 1].event;
  last_end_ns_ = step.marks[step.used - 1].ns;
}

void DeviceClock::use_layout(size_t buckets) {
  if (buckets > reductions_.size()) timeline_.add_buckets(collectives_of(*ddp_));
  reductions_.resize(buckets);
  gathers_.resize(buckets);
}

/// What was enqueued early has its turn when the gradients are there. These may have been moved past the
/// start by nanoseconds, to keep their stream's order.
void DeviceClock::note_transfers(const Marks& step) {
  int64_t ready_ns = 0, started_ns = 0;
  for (size_t i = 0; i < step.used; ++i) {
    const Mark& mark = step.marks[i];
    const auto bucket = static_cast<size_t>(mark.index);
    switch (mark.kind) {
      case kReduceReady:
      case kGatherReady:
        ready_ns = mark.ns;
        break;
      case kReduceStarted:
      case kGatherStarted:
        started_ns = std::max(ready_ns, mark.ns);
        break;
      case kReduceEnded:
        reductions_[bucket] = {ready_ns, {ready_ns, started_ns, std::max(started_ns, mark.ns)}};
        break;
      case kGatherEnded:
        gathers_[bucket] = {ready_ns, started_ns, std::max(started_ns, mark.ns)};
        break;
      default:
        break;
    }
  }
}

void DeviceClock::measure(const Marks& step) {
  std::vector<Interval> waits;
  int64_t before_ns = 0, updated_ns = 0;
  for (size_t i = 0; i < step.used; ++i) {
    const Mark& mark = step.marks[i];
    if (!is_phase(mark)) continue;
    if (mark.kind == kWaited || mark.kind == kGathered) waits.push_back({before_ns, mark.ns});
    if (mark.kind == kUpdated) updated_ns += mark.ns - before_ns;
    before_ns = mark.ns;
  }
  optimizer_ms_.add(to_ms(updated_ns));
  UnderWay transfers(std::move(waits));
  for (const DdpBucketTimes& bucket : reductions_) transfers.add(bucket.work);
  for (size_t b = gathers_.size(); b-- > 0;) transfers.add(gathers_[b]);  // in reverse order
  exposed_ns_ = transfers.exposed_ns();
  hidden_ns_ = transfers.ns() - exposed_ns_;
}

StepTimes DeviceClock::times(uint64_t number, double data_wait_ms, const Work::Times& headers) {
  Marks& step = steps_[number % kSteps];
  if (!device_.status().ok()) return {};
  const int64_t before_ns = last_end_ns_;
  read(step);
  if (!device_.status().ok()) return {};
  const int64_t begin_ns = step.marks[0].ns, end_ns = last_end_ns_;
  if (!step.replayed) {
    if (step.buckets != reductions_.size()) use_layout(step.buckets);
    note_transfers(step);
    measure(step);
  }
  if (draws_) draw(step, number, headers);
  const int64_t exposed_ns = std::min(exposed_ns_, end_ns - begin_ns);
  const double idle = step.host_begin_ns != 0 ? 0 : to_ms(begin_ns - before_ns);
  const double for_data = std::min(idle, data_wait_ms);
  return {.step_ms = to_ms(end_ns - begin_ns) + idle,
          .compute_ms = to_ms(end_ns - begin_ns - exposed_ns),
          .comm_ms = to_ms(hidden_ns_ + exposed_ns),
          .exposed_comm_ms = to_ms(exposed_ns),
          .other_wait_ms = idle - for_data,
          .data_wait_ms = for_data};
}

void DeviceClock::draw(const Marks& step, uint64_t number, const Work::Times& headers) {
  using Activity = Timeline::Activity;
  timeline_.step_begins(number);
  int64_t forward_ns = 0;  // when it began, of the micro-batch
  int64_t before_ns = 0;
  for (size_t i = 0; i < step.used; ++i) {
    const Mark& mark = step.marks[i];
    if (!is_phase(mark)) continue;
    switch (mark.kind) {
      case kForwardLayer:
        if (forward_ns == 0) forward_ns = mark.ns;
        timeline_.layer_begins(Timeline::Direction::kForward, mark.index, mark.ns);
        break;
      case kBackwardLayer:
        if (forward_ns != 0) timeline_.computed(Activity::kForward, forward_ns, mark.ns);
        forward_ns = 0;
        timeline_.layer_begins(Timeline::Direction::kBackward, mark.index, mark.ns);
        break;
      case kBackwardEnds:
        timeline_.layer_begins(Timeline::Direction::kBackward, -1, mark.ns);
        break;
      case kWaited:
        timeline_.computed(Activity::kWait, before_ns, mark.ns);
        break;
      case kUpdated:
        if (mark.index == kAll) {
          timeline_.computed(Activity::kOptimizer, before_ns, mark.ns);
        } else {
          timeline_.updated(static_cast<size_t>(mark.index), before_ns, mark.ns);
        }
        break;
      case kGathered:
        timeline_.gathered(number, before_ns, mark.ns, gathers_);
        break;
      default:
        break;
    }
    before_ns = mark.ns;
  }
  timeline_.exchanged_headers(headers);
  timeline_.communicated(reductions_);
}

}  // namespace rondo::trainer
