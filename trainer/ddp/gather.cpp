// See gather.hpp.
#include "trainer/ddp/gather.hpp"

namespace rondo::ddp {

ParameterGather::ParameterGather(Communicator& communicator, const Layout& layout,
                                 const Shards& shards, DataType type, std::byte* parameters)
    : communicator_(communicator),
      layout_(layout),
      shards_(shards),
      type_(type),
      parameters_(parameters),
      works_(layout.buckets.size()),
      times_(layout.buckets.size()) {}

ParameterGather::~ParameterGather() {
  for (size_t b = 0; b < works_.size(); ++b) (void)wait(b);
}

void ParameterGather::start(size_t bucket) {
  const BucketShards& cut = shards_.buckets[bucket];
  if (cut.counts.empty()) return;
  RONDO_CHECK(!works_[bucket].has_value(), "bucket %zu is gathered twice without a wait", bucket);
  std::byte* all = parameters_ + layout_.buckets[bucket].offset * size_of(type_);
  std::byte* own = parameters_ + shards_.own_of_bucket[bucket].begin * size_of(type_);
  works_[bucket] = communicator_.all_gather_v_async(own, all, cut.counts, cut.offsets, type_);
}

Status ParameterGather::wait(size_t bucket) {
  std::optional<Work>& work = works_[bucket];
  if (!work) return {};
  const Status status = work->wait();
  times_[bucket] = work->times();
  work.reset();
  return status;
}

}  // namespace rondo::ddp
