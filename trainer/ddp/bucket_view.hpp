// Buckets as a communication hook sees them.
#pragma once

#include <cstddef>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/ddp/lane.hpp"

namespace rondo::ddp {

/// Borrows the gradients.
class BucketView {
 public:
  explicit BucketView(const GradientStorage& gradients) : gradients_(gradients) {}

  /// `factor`: of this rank's gradients. What it refers to is valid until the next call.
  GradientBucket of(size_t index, double factor);

 private:
  const GradientStorage gradients_;
  std::vector<GradientBucket::BucketPart> parts_;  // of the last bucket
};

}  // namespace rondo::ddp
