// See reducer.hpp.
#include "trainer/reducer.hpp"

#include <algorithm>

namespace rondo::trainer {

Reducer::Reducer(Communicator& communicator, const BucketLayout& layout, void* gradients,
                 const Options& options)
    : communicator_(communicator),
      layout_(layout),
      gradients_(static_cast<std::byte*>(gradients)),
      options_(options),
      ready_(layout.offsets.size()),
      missing_(layout.buckets.size()),
      times_(layout.buckets.size()) {
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    bucket_of_.insert(bucket_of_.end(), static_cast<size_t>(layout.buckets[b].parameter_count), b);
  }
  works_.reserve(layout.buckets.size());
}

void Reducer::begin() {
  RONDO_CHECK(works_.empty(), "a step begins before the last was finished");
  std::fill(ready_.begin(), ready_.end(), char{0});
  for (size_t b = 0; b < missing_.size(); ++b) missing_[b] = layout_.buckets[b].parameter_count;
}

void Reducer::gradient_ready(int parameter) {
  const auto p = static_cast<size_t>(parameter);
  RONDO_CHECK(p < ready_.size() && !ready_[p], "parameter %d of %zu is ready twice or unknown",
              parameter, ready_.size());
  ready_[p] = 1;
  --missing_[bucket_of_[p]];
  if (!options_.overlap) return;
  // A full bucket waits for its predecessors: the order must be the same on every rank.
  while (works_.size() < missing_.size() && missing_[works_.size()] == 0) issue(works_.size());
}

void Reducer::issue(size_t bucket) {
  const Bucket& b = layout_.buckets[bucket];
  std::byte* data = gradients_ + b.offset * size_of(options_.type);
  works_.push_back(communicator_.all_reduce_async(data, data, b.count, options_.type));
}

Status Reducer::finish() {
  for (size_t p = 0; p < ready_.size(); ++p) {
    RONDO_CHECK(ready_[p], "backward never finished the gradient of parameter %zu", p);
  }
  while (works_.size() < layout_.buckets.size()) issue(works_.size());
  Status first;
  for (size_t b = 0; b < works_.size(); ++b) {
    const Status status = works_[b].wait();
    if (first.ok()) first = status;
    times_[b] = works_[b].times();
  }
  works_.clear();
  return first;
}

}  // namespace rondo::trainer
