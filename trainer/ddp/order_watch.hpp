// Whether the order of the tensors costs overlap: buckets travel in that order, so where backward
// finishes gradients in another, finished buckets wait. Judges from times; measures nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/ddp/order.hpp"

namespace rondo::ddp {

/// One thread.
class OrderWatch {
 public:
  /// After each step, its times. Once, when in kSteps steps in a row the same tensor has kept at
  /// least kLost of the time of communication, and kLeastNs, from being hidden: what to say.
  std::optional<std::string> look(const std::vector<DdpTensor>& tensors, const BucketLayout& layout,
                                  const BucketOrder& order,
                                  const std::vector<DdpBucketTimes>& times);

  static constexpr int kSteps = 3;
  static constexpr double kLost = 0.1;
  static constexpr int64_t kLeastNs = 100'000;  // of a step: less does not matter

 private:
  std::optional<size_t> culprit_;  // a tensor
  int steps_ = 0;                  // in a row
  bool said_ = false;
};

}  // namespace rondo::ddp
