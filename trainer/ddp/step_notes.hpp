// What a reducer tells of a step, for a ReadinessLog: an interface. On the host a call's time is the
// host's, on a GPU that at which the stream gets there (device_notes.hpp).
#pragma once

#include <cstddef>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/base/clock.hpp"
#include "trainer/ddp/readiness.hpp"

namespace rondo::ddp {

/// One thread. A step is: begin(), ready() of all gradients, backward_ends(), updates, end() if it
/// ended well.
class StepNotes {
 public:
  virtual ~StepNotes() = default;
  virtual void begin() = 0;
  virtual void ready(size_t tensor, size_t count) = 0;
  virtual void backward_ends() = 0;
  /// What the caller does with a bucket as soon as it is reduced.
  virtual void update_begins() = 0;
  virtual void update_ends() = 0;
  virtual void end(const std::vector<DdpBucketTimes>& buckets) = 0;
  /// Afterwards the log has the last steps. May wait for the GPU.
  virtual Status settle() = 0;
};

/// Borrows the log.
class HostNotes final : public StepNotes {
 public:
  explicit HostNotes(ReadinessLog& log) : log_(log) {}

  void begin() override {
    log_.step_begins();
    update_ns_ = 0;
  }
  void ready(size_t tensor, size_t count) override { log_.ready(tensor, count, trainer::now_ns()); }
  void backward_ends() override { log_.backward_ends(trainer::now_ns()); }
  void update_begins() override { update_ns_ -= trainer::now_ns(); }
  void update_ends() override { update_ns_ += trainer::now_ns(); }
  void end(const std::vector<DdpBucketTimes>& buckets) override {
    log_.step_ends(buckets, update_ns_);
  }
  Status settle() override { return {}; }

 private:
  ReadinessLog& log_;
  int64_t update_ns_ = 0;
};

}  // namespace rondo::ddp
