// See host_lane.hpp.
#include "trainer/ddp/host_lane.hpp"

#include <utility>

#include "trainer/ddp/element.hpp"

namespace rondo::ddp {
namespace {

void scale(const GradientBucket& bucket) {
  with_element(bucket.type, [&]<class E>(E /*type*/) {
    auto* const data = static_cast<typename E::Stored*>(bucket.data);
    const auto factor = static_cast<typename E::Folded>(bucket.factor);
    for (size_t i = 0; i < bucket.count; ++i) data[i] = E::narrow(E::widen(data[i]) * factor);
  });
}

}  // namespace

bool scales_here(const Communicator& communicator, DataType type) {
  return communicator.is_reproducible() && size_of(type) < 4;
}

Work reduce_bucket(Communicator& communicator, const GradientBucket& bucket) {
  const bool scaled = scales_here(communicator, bucket.type);
  if (scaled) scale(bucket);
  const ReduceOp op = scaled ? ReduceOp::kSum : ReduceOp::kMulSum;
  CallOptions call;
  if (!scaled) call.factor = bucket.factor;
  if (bucket.shard_counts.empty()) {
    return communicator.all_reduce_async(bucket.data, bucket.data, bucket.count, bucket.type, op,
                                         call);
  }
  std::byte* own = static_cast<std::byte*>(bucket.data) + bucket.own_offset * size_of(bucket.type);
  return communicator.reduce_scatter_v_async(bucket.data, own, bucket.shard_counts,
                                             bucket.shard_offsets, bucket.type, op, call);
}

HostLane::HostLane(Communicator& communicator, const GradientStorage& gradients,
                   const DdpOptions& options)
    : communicator_(communicator),
      gradients_(gradients),
      options_(options),
      view_(gradients),
      seconds_(gradients.tensors.size()),
      times_(gradients.layout.buckets.size()) {
  for (size_t t = 0; t < seconds_.size(); ++t) {
    const DdpTensor& tensor = gradients.tensors[t];
    if (tensor.adds_to < 0) continue;
    const size_t base = gradients.layout.offsets[static_cast<size_t>(tensor.adds_to)];
    seconds_[t] = {.gradient = std::make_unique<SecondGradient>(communicator, tensor, options,
                                                                gradients.memory.tensor(t)),
                   .own = parts_within(gradients.shards.own, base, base + tensor.count())};
  }
  flights_.reserve(gradients.layout.buckets.size());
}

void HostLane::begin() {
  for (Second& second : seconds_) {
    if (second.gradient) second.gradient->begin();
  }
}

void HostLane::exchange_counts() {
  for (Second& second : seconds_) {
    if (second.gradient) second.gradient->exchange_counts();
  }
}

Status HostLane::send_buffers(void* data, size_t bytes, int root) {
  buffers_ = communicator_.broadcast_async(data, data, bytes, DataType::kUint8, root);
  return {};
}

Status HostLane::start(const Departure& departure) {
  factor_ = departure.factor;
  const GradientBucket bucket = view_.of(flights_.size(), factor_);
  const auto take_off = [&](Work work, size_t collectives) {
    flights_.push_back(
        {.ready_ns = departure.ready_ns, .work = std::move(work), .collectives = collectives});
  };
  SecondGradient* const second = second_of(bucket.index).gradient.get();
  if (second != nullptr && !second->must_travel_whole()) {
    take_off(second->start(factor_), 1);
  } else if (options_.hook) {
    const size_t collectives = options_.hook->collectives(bucket);
    take_off(options_.hook->start(communicator_, bucket), collectives);
  } else {
    take_off(reduce_bucket(communicator_, bucket), 1);
  }
  for (size_t b = 0; b + 1 < flights_.size(); ++b) RONDO_TRY(advance(b));
  return {};
}

/// Starts the bucket's next collective, if there is one, when the one before has ended.
Status HostLane::advance(size_t bucket) {
  Flight& flight = flights_[bucket];
  if (flight.started >= flight.collectives) return {};
  RONDO_TRY(flight.work.wait());
  if (flight.started == 1) flight.first = flight.work.times();
  flight.work = options_.hook->next(communicator_, view_.of(bucket, factor_), flight.started);
  ++flight.started;
  return {};
}

Status HostLane::finish(size_t bucket) {
  Flight& flight = flights_[bucket];
  while (flight.started < flight.collectives) RONDO_TRY(advance(bucket));
  RONDO_TRY(flight.work.wait());
  times_[bucket] = {.ready_ns = flight.ready_ns, .work = times_of(flight)};
  const Second& second = second_of(bucket);
  if (options_.hook && (!second.gradient || second.gradient->travelled_whole())) {
    options_.hook->finish(view_.of(bucket, factor_));
  }
  if (!second.gradient) return {};
  const size_t tensor = gradients_.layout.buckets[bucket].pieces.front().tensor;
  const auto base = static_cast<size_t>(gradients_.tensors[tensor].adds_to);
  return second.gradient->add_to(gradients_.memory.tensor(base), second.own);
}

Work::Times HostLane::times_of(const Flight& flight) const {
  Work::Times times = flight.work.times();
  if (flight.started > 1) {
    times.issued_ns = flight.first.issued_ns;
    times.started_ns = flight.first.started_ns;
  }
  return times;
}

void HostLane::settle() {
  for (Flight& flight : flights_) (void)flight.work.wait();
  flights_.clear();
  if (buffers_) (void)buffers_->wait();
  buffers_.reset();
  for (Second& second : seconds_) {
    if (second.gradient) second.gradient->settle();
  }
}

}  // namespace rondo::ddp
