// The clock of a step: notes when the step turns from one phase to the next and when gradients are
// final, and makes the timeline and the measurements of it. The step only names its phases.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/models/model.hpp"
#include "trainer/report/measurements.hpp"
#include "trainer/report/report.hpp"
#include "trainer/report/timeline.hpp"

namespace rondo::trainer {

/// What a step does, one after the other; with several micro-batches kData to kBackward repeat.
enum class StepPhase : uint8_t {
  kBegin,
  kData,        // until the samples are there
  kParameters,  // until the last step's parameters are there, with --zero 1
  kHeaders,     // until all headers are there, where forward must not begin before
  kForward,
  kBackward,
  kWait,  // for the gradients that are still under way; those that are there are updated meanwhile
  kUpdate,  // what of it comes after all gradients
  kNone,    // between two steps
};

/// One thread.
class StepClock : public ForwardListener, private BackwardListener {
 public:
  explicit StepClock(DistributedDataParallel& ddp, Timeline timeline = {});

  void step_begins(uint64_t step);
  /// Buckets have changed, before the first phase: measures from this step on.
  void use_layout();
  void turns_to(StepPhase phase);
  /// For one backward pass: notes what it reports and passes it on to `next`.
  BackwardListener& beside(BackwardListener& next);
  /// In kParameters, when they are there. In the trace they belong to the last step, but they are
  /// counted with this one: the last step's line was printed before any wait for them.
  void gathered();
  /// `updated`: the step changed parameters, in `updates`, an interval for each bucket.
  StepTimes step_ends(const Work::Times& loss, bool updated, const std::vector<Interval>& updates);

  const Measurements& measured() const { return measured_; }
  /// Collective: the trace is written.
  Status close(Communicator& communicator) { return timeline_.close(communicator); }

 private:
  void forward_begins(int layer) override;
  void layer_begins(int layer) override;
  void gradient_ready(int parameter, size_t count) override;
  void gradient_skipped(int parameter) override { next_->gradient_skipped(parameter); }

  DistributedDataParallel& ddp_;
  Timeline timeline_;
  Measurements measured_;
  BackwardListener* next_ = nullptr;

  StepPhase phase_ = StepPhase::kNone;
  int64_t since_ns_ = 0;  // when phase_ began
  uint64_t number_ = 0;   // of the step under way
  uint64_t last_update_ = 0;
  Measurements::StepMoments step_ = {};
  int64_t gather_ns_ = 0, exposed_gather_ns_ = 0;  // of the parameters: under way, and waited for
};

}  // namespace rondo::trainer
