// See stream_lane.hpp.
#include "trainer/ddp/stream_lane.hpp"

namespace rondo::ddp {
StreamLane::StreamLane(const Routes& routes, const GradientStorage& gradients,
                       const DdpOptions& options)
    : communicator_(routes.data),
      gpu_(*routes.gpu),
      gradients_(gradients),
      sum_(options.average == DdpOptions::Average::kNone ? ReduceOp::kSum : ReduceOp::kMulSum),
      hook_(options.hook.get()),
      view_(gradients),
      transfers_(*routes.gpu, gradients.layout.buckets.size(), /*gathers=*/false),
      buffers_sent_(routes.gpu->create_event()),
      no_times_(gradients.layout.buckets.size()) {}

Status StreamLane::status() {
  RONDO_TRY(gpu_.status());
  return communicator_.status();
}

Status StreamLane::send_buffers(void* data, size_t bytes, int root) {
  gpu_.hand_over();
  RONDO_TRY(gpu_.status());
  RONDO_TRY(communicator_.broadcast(data, data, bytes, DataType::kUint8, root,
                                    {.stream = gpu_.communication()}));
  gpu_.record_on_communication(buffers_sent_);
  return gpu_.status();
}

Status StreamLane::receive_buffers() {
  gpu_.compute_after(buffers_sent_);
  return gpu_.status();
}

Status StreamLane::start(const Departure& departure) {
  const size_t bucket = started_;
  RONDO_TRY(transfers_.send(
      bucket, [&](Gpu::Stream stream) { return reduce(bucket, departure.factor, stream); }));
  ++started_;
  return {};
}

Status StreamLane::reduce(size_t index, double factor, Gpu::Stream stream) {
  if (hook_ != nullptr) return hook_->enqueue(communicator_, view_.of(index, factor), stream);
  const DdpBucket& bucket = gradients_.layout.buckets[index];
  const BucketShards& shards = gradients_.shards.buckets[index];
  const DataType type = *gradients_.tensors[bucket.pieces.front().tensor].type;
  std::byte* const all = gradients_.memory.bucket(index);
  const CallOptions call = {.factor = factor, .stream = stream};
  if (shards.counts.empty()) {
    return communicator_.all_reduce(all, all, bucket.count, type, sum_, call);
  }
  const size_t before = gradients_.shards.own_of_bucket[index].begin - bucket.offset;
  std::byte* const own = all + before * size_of(type);
  return communicator_.reduce_scatter(all, own, shards.counts[0], type, sum_, call);
}

}  // namespace rondo::ddp
