// See order_watch.hpp.
#include "trainer/ddp/order_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace rondo::ddp {
namespace {

/// The bucket for which finished ones wait longest, and what that costs.
struct Waiting {
  size_t late = 0;               // the bucket
  size_t finished = 0;           // the first bucket that waits for it longest
  int64_t longest_ns = 0;        // its wait
  int64_t lost_ns = 0;           // of communication that could have been hidden, by all that wait
  int64_t communicating_ns = 0;  // all buckets
};

Waiting judge(const std::vector<DdpBucketTimes>& times) {
  Waiting all;
  size_t late = 0;  // the latest bucket so far
  for (size_t b = 0; b < times.size(); ++b) {
    const int64_t lasts_ns = times[b].work.ended_ns - times[b].work.started_ns;
    all.communicating_ns += lasts_ns;
    const int64_t waits_ns = times[late].ready_ns - times[b].ready_ns;
    if (waits_ns <= 0) late = b;
    all.lost_ns += std::clamp<int64_t>(waits_ns, 0, lasts_ns);
    if (waits_ns > all.longest_ns) {
      all.late = late, all.finished = b, all.longest_ns = waits_ns;
    }
  }
  return all;
}

}  // namespace

std::optional<std::string> OrderWatch::look(const std::vector<DdpTensor>& tensors,
                                            const BucketLayout& layout, const BucketOrder& order,
                                            const std::vector<DdpBucketTimes>& times) {
  if (said_) return std::nullopt;
  const Waiting waiting = judge(times);
  const double lost =
      static_cast<double>(waiting.lost_ns) / static_cast<double>(waiting.communicating_ns);
  if (waiting.lost_ns < kLeastNs || lost < kLost) {
    culprit_.reset();
    return std::nullopt;
  }
  const size_t culprit = order.last_tensor(waiting.late);
  steps_ = culprit_ == culprit ? steps_ + 1 : 1;
  culprit_ = culprit;
  if (steps_ < kSteps) return std::nullopt;
  said_ = true;
  const size_t waits = layout.buckets[waiting.finished].pieces.front().tensor;
  return fmt::format(
      "the gradient of '{}' (bucket {}) is ready {:.3g} ms after bucket {} with '{}', which "
      "travels "
      "after it and so waits: {:.0f} % of the communication could be hidden, and is not. List the "
      "tensors in the order in which backward finishes their gradients",
      tensors[culprit].name, waiting.late, static_cast<double>(waiting.longest_ns) / 1e6,
      waiting.finished, tensors[waits].name, 100 * lost);
}

}  // namespace rondo::ddp
