// Which rank updates which parameters (ZeRO-1): a pure function of the layout and the number of
// ranks, so that all ranks know it of each other. Moves nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/ddp/layout.hpp"

namespace rondo::ddp {

/// What each rank owns of one bucket, in elements from its first: a range per rank that has any.
/// Empty: the bucket is not cut.
struct BucketShards {
  std::vector<size_t> counts, offsets;
};

struct Shards {
  std::vector<BucketShards> buckets;
  std::vector<DdpRange> own_of_bucket;  // this rank's, in the flat storage
  std::vector<DdpRange> own;            // of parameters only; ascending, adjacent ones joined

  /// own_of_bucket, but nothing where the bucket holds no parameters.
  DdpRange parameters_of(size_t bucket, const BucketLayout& layout) const;
};

/// Every bucket of parameters is cut into as equal parts as kDdpShardUnit allows. Ranks take the
/// parts in turn, from bucket to bucket, so that many buckets of one part each are spread too; only
/// where a bucket's end cuts a unit, the next bucket goes on with the same rank. Buckets of
/// `adds_to` tensors are not cut: their sum is needed by whoever owns a part of the tensor they add
/// to.
Shards make_shards(const std::vector<DdpTensor>& tensors, const BucketLayout& layout, int ranks,
                   int rank);

/// On a device: rank r has the r-th of as many equal blocks of every bucket, as collectives of one
/// count cut it. REQUIRES: a layout with BucketCaps::blocks of `ranks`.
Shards make_equal_shards(const BucketLayout& layout, int ranks, int rank);

/// Every rank owns everything.
Shards no_shards(const BucketLayout& layout);

/// What lies inside [begin, end) of `ranges`, counted from `begin`.
std::vector<DdpRange> parts_within(const std::vector<DdpRange>& ranges, size_t begin, size_t end);

}  // namespace rondo::ddp
