// When the parts of the gradients were final in this rank's last steps, and what carrying them took.
// Notes and gives medians; decides nothing and knows no other rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/ddp/layout.hpp"

namespace rondo::ddp {

/// One thread. Every step is noted in place of the oldest of kKept.
class ReadinessLog {
 public:
  static constexpr size_t kKept = 4;

  void step_begins() { now_ = {}; }
  void ready(size_t tensor, size_t count, int64_t ns);
  void backward_ends(int64_t ns) { now_.backward_ns = ns - now_.begin_ns; }
  /// `update_ns`: what the caller did with buckets as soon as they were reduced.
  void step_ends(const std::vector<DdpBucketTimes>& buckets, int64_t update_ns);
  /// Forgets the steps before the last `count`.
  void keep_last(size_t count);
  size_t steps() const { return steps_.size(); }

  /// Elements of the tensor that the last step reported as final before all of them were.
  std::vector<size_t> reported_parts(size_t tensor) const;
  /// Medians, since the first gradient of the step. Of elements [begin, end) of the flat storage, the
  /// last one's; of what was never reported, the end of backward.
  int64_t ready_ns(const std::vector<DdpTensor>& tensors, const BucketLayout& layout, size_t begin,
                   size_t end) const;
  int64_t backward_ns() const;
  int64_t update_ns() const;
  /// Of each step, of each bucket in it: from its turn to its end.
  std::vector<int64_t> transfers_ns() const;

 private:
  struct PartReport {
    size_t tensor, count;
    int64_t ns;
  };
  struct NotedStep {
    int64_t begin_ns = 0;  // of the first report; the other times count from there
    std::vector<PartReport> reports;
    int64_t backward_ns = 0, update_ns = 0;
    std::vector<int64_t> transfers_ns;
  };

  std::vector<NotedStep> steps_;
  NotedStep now_;
};

/// The middle value, or of two the lesser. REQUIRES: a value.
int64_t middle(std::vector<int64_t> values);

}  // namespace rondo::ddp
