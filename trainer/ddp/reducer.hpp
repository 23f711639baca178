// One rank's step: a bucket leaves as soon as its last gradient is final, always in bucket order,
// while backward still computes others. Knows neither the model nor the optimizer. Which bucket is
// next is order.hpp's, how it travels the lane's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/ddp/headers.hpp"
#include "trainer/ddp/lane.hpp"
#include "trainer/ddp/order.hpp"
#include "trainer/ddp/order_watch.hpp"
#include "trainer/ddp/routes.hpp"
#include "trainer/ddp/step_notes.hpp"

namespace rondo::ddp {

/// One thread. A step is: begin(), micro-batches of ready() or skipped(), finish(); nothing travels
/// while `quiet`. A wrong call is the step's error, and the communicators': finish() returns it.
class Reducer {
 public:
  /// `buffers`: null if each rank keeps its own. Borrows everything.
  Reducer(const Routes& routes, const GradientStorage& gradients, BufferMemory* buffers,
          const DdpOptions& options, Headers& headers);

  /// Aborts the communicators if a step is under way, and waits until nothing uses the gradients (on a
  /// GPU the streams do until it ends).
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// From the next step on: notes every step that ends well. Borrowed; null: no more.
  void note_in(StepNotes* notes) { notes_ = notes; }
  void begin();
  void ready(size_t tensor, size_t count, bool quiet);
  void skipped(size_t tensor, bool quiet);
  void touches_rows(size_t tensor, std::span<const int32_t> rows);
  using BucketReduced = std::function<void(size_t bucket)>;
  Status finish(const BucketReduced& reduced);
  /// Instead of micro-batches and finish(): a graph of them is on the stream.
  Status replayed();

  /// The first failure that is known without waiting.
  Status status() { return lane_->status(); }
  /// Begun, not finished, and not given up by all ranks together (Headers::ended_empty()).
  bool under_way() const;
  bool used(size_t tensor) const { return used_[tensor] != 0; }
  const std::vector<DdpBucketTimes>& times() const { return lane_->times(); }

 private:
  void refuse(const std::string& what, Code code = Code::kInvalidArgument);
  bool exists(size_t tensor, const char* what);
  void start_counts();
  void pieces_ready(size_t tensor, size_t count);
  void issue_complete();
  void issue(size_t bucket);
  Status send(size_t bucket);
  Status issue_buffers();
  void issue_used();
  bool is_captured() const { return routes_.gpu != nullptr && routes_.gpu->is_captured(); }
  Status require_gradients() const;
  Status collect(size_t bucket);
  Status collect_all(const BucketReduced& reduced);
  void settle();

  const Routes routes_;
  const GradientStorage gradients_;
  BufferMemory* const buffers_;
  const DdpOptions& options_;
  Headers& headers_;
  const bool any_may_skip_;
  BucketOrder order_;
  const std::unique_ptr<Lane> lane_;
  OrderWatch order_watch_;
  StepNotes* notes_ = nullptr;

  // The step under way.
  bool begun_ = false, counts_started_ = false;
  bool buffers_travel_ = false;
  std::vector<uint8_t> used_;  // by tensor, in any micro-batch; after finish() by any rank
  std::optional<Work> used_work_;
  Status failure_;
};

}  // namespace rondo::ddp
