// Which gradients travel together, and where they lie: a pure function of the parameters' sizes, so
// that every rank and every run has the same layout. Knows no models and moves nothing.
#pragma once

#include <cstddef>
#include <vector>

namespace rondo::trainer {

/// Consecutive parameters that share one all-reduce.
struct Bucket {
  int first_parameter, parameter_count;
  size_t offset, count;  // elements of the flat storage, padding included
};

struct BucketLayout {
  std::vector<Bucket> buckets;
  std::vector<size_t> offsets;  // of each parameter, in elements; multiples of 64 bytes
  size_t count = 0;             // elements of the flat storage
};

struct BucketCaps {
  size_t first_bytes;  // a small first bucket starts the communication early in backward
  size_t bytes;        // the others: large enough to amortise the latency of an all-reduce
};

/// Greedy in the given order, which should be the one in which backward finishes: a parameter is
/// added, and if that brings the bucket to its cap or above, the bucket is closed. Parameters are
/// never split, so a bucket can exceed its cap by less than one parameter.
BucketLayout make_buckets(const std::vector<size_t>& parameter_counts, size_t element_bytes,
                          const BucketCaps& caps);

}  // namespace rondo::trainer
