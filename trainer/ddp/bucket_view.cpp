// See bucket_view.hpp.
#include "trainer/ddp/bucket_view.hpp"

namespace rondo::ddp {

GradientBucket BucketView::of(size_t index, double factor) {
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
          .factor = factor,
          .shard_counts = shards.counts,
          .shard_offsets = shards.offsets,
          .own_offset = own.begin - bucket.offset,
          .own_count = own.count()};
}

}  // namespace rondo::ddp
