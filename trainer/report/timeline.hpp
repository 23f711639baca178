// What a training step looks like in a trace: a row for what this rank computes, one for the
// headers, one for the loss, one for each bucket. Knows the rows' names; Trace knows the format.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/report/trace.hpp"

namespace rondo::trainer {

/// One thread. Without a file everything is a no-op.
class Timeline {
 public:
  enum class Activity : uint8_t { kData, kForward, kWait, kOptimizer, kParameterWait };

  /// `collectives`: by which each bucket's gradients travel.
  static Result<Timeline> open(const std::string& path, int rank,
                               const std::vector<std::string>& layers,
                               const std::vector<std::string>& collectives);

  /// Rows for those that have none yet, where there are more buckets than before.
  void add_buckets(const std::vector<std::string>& collectives);
  void step_begins(uint64_t step) { step_ = step; }
  void computed(Activity kind, int64_t begin_ns, int64_t end_ns);
  /// This bucket's part of the optimizer's work.
  void updated(size_t bucket, int64_t begin_ns, int64_t end_ns);
  enum class Direction : uint8_t { kForward, kBackward };
  /// The pass turns to this layer at that time, which ends the one before; -1: it has ended.
  void layer_begins(Direction direction, int layer, int64_t ns);
  /// Of the step that has ended.
  void exchanged_headers(const Work::Times& headers);
  void exchanged_loss(const Work::Times& loss);
  void communicated(const std::vector<DdpBucketTimes>& buckets);
  /// Of the parameters that this step's update sent round (ZeRO-1), and the wait for them, which is
  /// in the next step.
  void gathered(uint64_t step, int64_t wait_begin_ns, int64_t wait_end_ns,
                const std::vector<Work::Times>& buckets);
  /// Collective: rank 0 writes the events of all ranks.
  Status close(Communicator& communicator) { return trace_.close(communicator); }

 private:
  void add(size_t lane, const std::string& name, uint64_t step, const Work::Times& times);

  Trace trace_;
  // Where they are, they stay: the trace borrows them.
  std::unique_ptr<std::vector<std::string>> layers_;  // two for each
  std::unique_ptr<std::deque<std::string>> buckets_, gathers_, updates_;
  bool on_ = false;
  uint64_t step_ = 0;
  const std::string* layer_ = nullptr;  // whose span is under way
  int64_t layer_begin_ns_ = 0;
};

}  // namespace rondo::trainer
