// See gather.hpp.
#include "trainer/ddp/gather.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rondo::ddp {

ParameterGather::ParameterGather(const Routes& routes, const std::vector<DdpTensor>& tensors,
                                 const BucketLayout& layout, const Shards& shards,
                                 std::byte* parameters)
    : routes_(routes),
      tensors_(tensors),
      layout_(layout),
      shards_(shards),
      parameters_(parameters),
      works_(layout.buckets.size()),
      on_stream_(layout.buckets.size()),
      times_(layout.buckets.size()) {
  const bool cuts = std::any_of(shards.buckets.begin(), shards.buckets.end(),
                                [](const BucketShards& cut) { return !cut.counts.empty(); });
  if (routes.gpu != nullptr && cuts) {
    transfers_.emplace(*routes.gpu, layout.buckets.size(), /*gathers=*/true);
  }
}

ParameterGather::~ParameterGather() {
  for (size_t b = 0; b < works_.size(); ++b) (void)wait(b);
}

void ParameterGather::fail(const Status& status) {
  if (!failure_.ok()) return;
  failure_ = status;
  routes_.abort(status.message());
}

void ParameterGather::start(size_t bucket) {
  if (bucket >= works_.size() || is_under_way(bucket)) {
    return fail(Status(
        Code::kInvalidArgument,
        fmt::format("rank {} gathers bucket {}, {}", routes_.data.rank(), bucket,
                    bucket < works_.size() ? "which is under way: call wait_parameters() first"
                                           : fmt::format("but there are {}", works_.size()))));
  }
  const BucketShards& cut = shards_.buckets[bucket];
  if (cut.counts.empty()) return;
  const DdpBucket& here = layout_.buckets[bucket];
  const DataType type = *tensors_[here.pieces.front().tensor].type;
  std::byte* all = parameters_ + here.byte_offset;
  std::byte* own = all + (shards_.own_of_bucket[bucket].begin - here.offset) * size_of(type);
  Communicator& ranks = routes_.data;
  if (!transfers_) {
    works_[bucket] = ranks.all_gather_v_async(own, all, cut.counts, cut.offsets, type);
    return;
  }
  on_stream_[bucket] = true;
  const Status sent = transfers_->send(bucket, [&](Gpu::Stream stream) {
    return ranks.all_gather(own, all, cut.counts[0], type, {.stream = stream});
  });
  if (!sent.ok()) fail(sent);
}

Status ParameterGather::wait(size_t bucket) {
  if (bucket >= works_.size() || !is_under_way(bucket)) return failure_;
  Status status;
  if (transfers_) {
    on_stream_[bucket] = false;
    status = transfers_->receive(bucket);
    if (!status.ok()) fail(status);
  } else {
    std::optional<Work>& work = works_[bucket];
    status = work->wait();
    times_[bucket] = work->times();
    work.reset();
  }
  return failure_.ok() ? status : failure_;
}

}  // namespace rondo::ddp
