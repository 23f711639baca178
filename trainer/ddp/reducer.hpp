// Sends gradients round while backward still computes others: one asynchronous all-reduce, or
// reduce-scatter where ranks own shards, per bucket, issued as soon as the bucket's last gradient
// is final, always in bucket order. Knows neither the model nor the optimizer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/ddp/headers.hpp"
#include "trainer/ddp/layout.hpp"
#include "trainer/ddp/rows.hpp"
#include "trainer/ddp/shards.hpp"

namespace rondo::ddp {

/// What the reducer works on. Borrowed.
struct Gradients {
  const std::vector<DdpTensor>& tensors;
  const Layout& layout;
  const Shards& shards;
  void* data;  // flat, as the layout says

  std::byte* at(size_t element, DataType type) const {
    return static_cast<std::byte*>(data) + element * size_of(type);
  }
};

/// One thread. A step is: begin(), micro_batches of ready() or skipped(), finish(); nothing travels
/// while `quiet`.
class Reducer {
 public:
  Reducer(Communicator& communicator, const Gradients& gradients, const DdpOptions& options,
          Headers& headers);

  /// Aborts the communicator if a step is under way, and waits until nothing uses the gradients.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  void begin();
  void ready(size_t tensor, size_t count, bool quiet);
  void skipped(size_t tensor, bool quiet);
  void touches_rows(size_t tensor, std::span<const int32_t> rows);
  using BucketReduced = std::function<void(size_t bucket)>;
  Status finish(const BucketReduced& reduced);

  /// Begun, not finished, and not given up by all ranks together (Headers::ended_empty()).
  bool under_way() const;
  bool used(size_t tensor) const { return used_[tensor] != 0; }
  const std::vector<DdpBucketTimes>& times() const { return times_; }

 private:
  void plan_reports();
  void refuse(const std::string& what);
  void start_counts();
  void pieces_ready(size_t tensor, size_t count);
  void issue_complete();
  void issue(size_t bucket);
  Work reduce(const GradientBucket& bucket);
  GradientBucket bucket_of(size_t index) const;
  Status require_gradients() const;
  Status collect(size_t bucket);
  Status collect_all(const BucketReduced& reduced);
  void settle();
  void share_used();

  Communicator& communicator_;
  const Gradients gradients_;
  const DdpOptions& options_;
  Headers& headers_;
  std::vector<std::unique_ptr<Rows>> rows_;      // by tensor, null: an ordinary one
  std::vector<std::vector<DdpRange>> adds_in_;   // by tensor: where of its base, if it has rows
  std::vector<std::vector<size_t>> buckets_of_;  // by tensor: the bucket of each of its pieces
  std::vector<std::vector<size_t>> piece_ends_;  // by tensor
  std::vector<std::vector<size_t>> whole_with_;  // by bucket: which are averages when it has ended
  bool any_may_skip_ = false;

  // The step under way.
  std::vector<size_t> pieces_done_;  // by tensor
  bool begun_ = false;
  std::vector<uint8_t> used_;    // by tensor, in any micro-batch; after finish() by any rank
  std::vector<size_t> missing_;  // by bucket: pieces that are not final yet
  std::vector<Work> works_;      // issued, in bucket order
  std::vector<Work> map_work_;   // of used_; at most one
  std::vector<DdpBucketTimes> times_;
  bool counts_started_ = false;
  Status failure_;
};

}  // namespace rondo::ddp
