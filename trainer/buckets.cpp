// See buckets.hpp.
#include "trainer/buckets.hpp"

namespace rondo::trainer {

BucketLayout make_buckets(const std::vector<size_t>& parameter_counts, size_t element_bytes,
                          const BucketCaps& caps) {
  const size_t alignment = 64 / element_bytes;
  BucketLayout layout;
  bool open = false;
  for (size_t i = 0; i < parameter_counts.size(); ++i) {
    if (!open) {
      layout.buckets.push_back({.first_parameter = static_cast<int>(i),
                                .parameter_count = 0,
                                .offset = layout.count,
                                .count = 0});
      open = true;
    }
    layout.offsets.push_back(layout.count);
    layout.count += (parameter_counts[i] + alignment - 1) / alignment * alignment;

    Bucket& bucket = layout.buckets.back();
    ++bucket.parameter_count;
    bucket.count = layout.count - bucket.offset;
    const size_t cap = layout.buckets.size() == 1 ? caps.first_bytes : caps.bytes;
    open = bucket.count * element_bytes < cap;
  }
  return layout;
}

}  // namespace rondo::trainer
