// See shards.hpp.
#include "trainer/ddp/shards.hpp"

#include <algorithm>

namespace rondo::ddp {
namespace {

/// Where a bucket may be cut, its two ends included, in the flat storage.
std::vector<size_t> cuts_of(const DdpBucket& bucket, const BucketLayout& layout) {
  std::vector<size_t> cuts = {bucket.offset};
  for (const DdpBucket::Piece& piece : bucket.pieces) {
    const size_t first = (piece.begin + kDdpShardUnit - 1) / kDdpShardUnit * kDdpShardUnit;
    for (size_t element = first; element < piece.end; element += kDdpShardUnit) {
      const size_t cut = layout.offsets[piece.tensor] + element;
      if (cut != cuts.back()) cuts.push_back(cut);
    }
  }
  cuts.push_back(bucket.offset + bucket.count);
  return cuts;
}

/// At most `ranks` parts, none empty, each cut being the one nearest to where it should be.
std::vector<DdpRange> parts_of(const DdpBucket& bucket, const BucketLayout& layout, size_t ranks) {
  const std::vector<size_t> cuts = cuts_of(bucket, layout);
  std::vector<DdpRange> parts;
  size_t begin = bucket.offset;
  for (size_t part = 1; part <= ranks; ++part) {
    const size_t ideal = bucket.offset + bucket.count * part / ranks;
    auto cut = std::lower_bound(cuts.begin(), cuts.end(), ideal);
    if (cut != cuts.begin() && ideal - cut[-1] < *cut - ideal) --cut;
    if (*cut > begin) parts.push_back({.begin = begin, .end = *cut});
    begin = *cut;
  }
  return parts;
}

bool begins_inside_unit(const DdpBucket& bucket) {
  return bucket.pieces.front().begin % kDdpShardUnit != 0;
}

void append(std::vector<DdpRange>& ranges, const DdpRange& range) {
  if (range.count() == 0) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace

DdpRange Shards::parameters_of(size_t bucket, const BucketLayout& layout) const {
  const DdpRange range = own_of_bucket[bucket];
  return range.begin < layout.parameter_elements ? range : DdpRange{range.begin, range.begin};
}

Shards make_shards(const std::vector<DdpTensor>& tensors, const BucketLayout& layout, int ranks,
                   int rank) {
  const auto n = static_cast<size_t>(ranks);
  Shards shards{
      .buckets = std::vector<BucketShards>(layout.buckets.size()), .own_of_bucket = {}, .own = {}};
  size_t next = 0;  // whose turn it is
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const DdpBucket& bucket = layout.buckets[b];
    DdpRange own{.begin = bucket.offset, .end = bucket.offset + bucket.count};
    if (tensors[bucket.pieces.front().tensor].adds_to < 0) {
      own.end = own.begin;
      BucketShards& cut = shards.buckets[b];
      cut.counts.resize(n);
      cut.offsets.resize(n);
      if (begins_inside_unit(bucket)) next += n - 1;  // the last bucket's last rank again
      for (const DdpRange& part : parts_of(bucket, layout, n)) {
        const size_t owner = next++ % n;
        cut.counts[owner] = part.count();
        cut.offsets[owner] = part.begin - bucket.offset;
        if (owner == static_cast<size_t>(rank)) own = part;
      }
      append(shards.own, own);
    }
    shards.own_of_bucket.push_back(own);
  }
  return shards;
}

Shards make_equal_shards(const BucketLayout& layout, int ranks, int rank) {
  const auto n = static_cast<size_t>(ranks);
  Shards shards{.buckets = {}, .own_of_bucket = {}, .own = {}};
  for (const DdpBucket& bucket : layout.buckets) {
    const size_t each = bucket.count / n;
    BucketShards& cut = shards.buckets.emplace_back();
    cut.counts.assign(n, each);
    for (size_t r = 0; r < n; ++r) cut.offsets.push_back(r * each);
    const size_t begin = bucket.offset + static_cast<size_t>(rank) * each;
    shards.own_of_bucket.push_back({.begin = begin, .end = begin + each});
    append(shards.own, shards.own_of_bucket.back());
  }
  return shards;
}

Shards no_shards(const BucketLayout& layout) {
  Shards shards{.buckets = std::vector<BucketShards>(layout.buckets.size()),
                .own_of_bucket = {},
                .own = {{.begin = 0, .end = layout.parameter_elements}}};
  for (const DdpBucket& bucket : layout.buckets) {
    shards.own_of_bucket.push_back({.begin = bucket.offset, .end = bucket.offset + bucket.count});
  }
  return shards;
}

std::vector<DdpRange> parts_within(const std::vector<DdpRange>& ranges, size_t begin, size_t end) {
  std::vector<DdpRange> parts;
  for (const DdpRange& range : ranges) {
    const size_t first = std::max(range.begin, begin), last = std::min(range.end, end);
    if (first < last) parts.push_back({.begin = first - begin, .end = last - begin});
  }
  return parts;
}

}  // namespace rondo::ddp
