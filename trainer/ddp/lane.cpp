// See lane.hpp.
#include "trainer/ddp/lane.hpp"

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
  const ReduceOp op = scaled ? ReduceOp::kSum : ReduceOp::kScaledSum;
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

BucketLane::BucketLane(Communicator& communicator, const Gradients& gradients,
                       const DdpOptions& options)
    : communicator_(communicator),
      gradients_(gradients),
      options_(options),
      seconds_(gradients.tensors.size()) {
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

void BucketLane::begin() {
  for (Second& second : seconds_) {
    if (second.gradient) second.gradient->begin();
  }
}

void BucketLane::exchange_counts() {
  for (Second& second : seconds_) {
    if (second.gradient) second.gradient->exchange_counts();
  }
}

/// What it refers to is valid until the next call.
GradientBucket BucketLane::bucket_of(size_t index) {
  const DdpBucket& bucket = gradients_.layout.buckets[index];
  const BucketShards& shards = gradients_.shards.buckets[index];
  const DdpRange own = gradients_.shards.own_of_bucket[index];
  const DataType type = *gradients_.tensors[bucket.pieces.front().tensor].type;
  std::byte* const data = gradients_.memory.bucket(index);
  parts_.clear();
  for (const DdpBucket::Piece& piece : bucket.pieces) {
    const size_t before = gradients_.layout.offsets[piece.tensor] + piece.begin - bucket.offset;
    parts_.push_back({.tensor = piece.tensor,
                      .shape = gradients_.tensors[piece.tensor].shape,
                      .begin = piece.begin,
                      .end = piece.end,
                      .data = data + before * size_of(type)});
  }
  return {.parts = parts_,
          .index = index,
          .last = index + 1 == gradients_.layout.buckets.size(),
          .data = data,
          .count = bucket.count,
          .type = type,
          .factor = factor_,
          .shard_counts = shards.counts,
          .shard_offsets = shards.offsets,
          .own_offset = own.begin - bucket.offset,
          .own_count = own.count()};
}

Status BucketLane::start(double factor) {
  factor_ = factor;
  const GradientBucket bucket = bucket_of(flights_.size());
  SecondGradient* const second = second_of(bucket.index).gradient.get();
  if (second != nullptr && !second->must_travel_whole()) {
    flights_.push_back({.work = second->start(factor), .collectives = 1});
  } else if (options_.hook) {
    const size_t collectives = options_.hook->collectives(bucket);
    flights_.push_back(
        {.work = options_.hook->start(communicator_, bucket), .collectives = collectives});
  } else {
    flights_.push_back({.work = reduce_bucket(communicator_, bucket), .collectives = 1});
  }
  for (size_t b = 0; b + 1 < flights_.size(); ++b) RONDO_TRY(advance(b));
  return {};
}

/// Starts the bucket's next collective, if there is one, when the one before has ended.
Status BucketLane::advance(size_t bucket) {
  Flight& flight = flights_[bucket];
  if (flight.started >= flight.collectives) return {};
  RONDO_TRY(flight.work.wait());
  if (flight.started == 1) flight.first = flight.work.times();
  flight.work = options_.hook->next(communicator_, bucket_of(bucket), flight.started);
  ++flight.started;
  return {};
}

Status BucketLane::finish(size_t bucket) {
  Flight& flight = flights_[bucket];
  while (flight.started < flight.collectives) RONDO_TRY(advance(bucket));
  RONDO_TRY(flight.work.wait());
  const Second& second = second_of(bucket);
  if (options_.hook && (!second.gradient || second.gradient->travelled_whole())) {
    options_.hook->finish(bucket_of(bucket));
  }
  if (!second.gradient) return {};
  const size_t tensor = gradients_.layout.buckets[bucket].pieces.front().tensor;
  const auto base = static_cast<size_t>(gradients_.tensors[tensor].adds_to);
  return second.gradient->add_to(gradients_.memory.tensor(base), second.own);
}

Work::Times BucketLane::times(size_t bucket) const {
  const Flight& flight = flights_[bucket];
  Work::Times times = flight.work.times();
  if (flight.started > 1) {
    times.issued_ns = flight.first.issued_ns;
    times.started_ns = flight.first.started_ns;
  }
  return times;
}

void BucketLane::settle() {
  for (Flight& flight : flights_) (void)flight.work.wait();
  flights_.clear();
  for (Second& second : seconds_) {
    if (second.gradient) second.gradient->settle();
  }
}

}  // namespace rondo::ddp
