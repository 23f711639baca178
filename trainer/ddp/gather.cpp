// See gather.hpp.
#include "trainer/ddp/gather.hpp"

#include <fmt/format.h>

namespace rondo::ddp {

ParameterGather::ParameterGather(Communicator& communicator, const std::vector<DdpTensor>& tensors,
                                 const BucketLayout& layout, const Shards& shards,
                                 std::byte* parameters)
    : communicator_(communicator),
      tensors_(tensors),
      layout_(layout),
      shards_(shards),
      parameters_(parameters),
      works_(layout.buckets.size()),
      times_(layout.buckets.size()) {}

ParameterGather::~ParameterGather() {
  for (size_t b = 0; b < works_.size(); ++b) (void)wait(b);
}

void ParameterGather::start(size_t bucket) {
  if (bucket >= works_.size() || works_[bucket]) {
    if (!failure_.ok()) return;
    failure_ = Status(
        Code::kInvalidArgument,
        fmt::format("rank {} gathers bucket {}, {}", communicator_.rank(), bucket,
                    bucket < works_.size() ? "which is under way: call wait_parameters() first"
                                           : fmt::format("but there are {}", works_.size())));
    communicator_.abort(failure_.message());
    return;
  }
  const BucketShards& cut = shards_.buckets[bucket];
  if (cut.counts.empty()) return;
  const DdpBucket& here = layout_.buckets[bucket];
  const DataType type = *tensors_[here.pieces.front().tensor].type;
  std::byte* all = parameters_ + here.byte_offset;
  std::byte* own = all + (shards_.own_of_bucket[bucket].begin - here.offset) * size_of(type);
  works_[bucket] = communicator_.all_gather_v_async(own, all, cut.counts, cut.offsets, type);
}

Status ParameterGather::wait(size_t bucket) {
  if (bucket >= works_.size() || !works_[bucket]) return failure_;
  std::optional<Work>& work = works_[bucket];
  const Status status = work->wait();
  times_[bucket] = work->times();
  work.reset();
  return failure_.ok() ? status : failure_;
}

}  // namespace rondo::ddp
