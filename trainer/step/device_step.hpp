// A step of data parallel training on a device: the same calls as step.hpp's, each of which only
// enqueues. The host waits for other hosts' headers, for samples, and, when a step is enqueued, for
// the end of the one before it, whose loss it then reports: so the device always has work, and the
// host is never more than a step ahead.
#pragma once

#include <atomic>
#include <optional>
#include <set>
#include <vector>

#include "trainer/base/device.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/cuda/device_weights.hpp"
#include "trainer/step/batch_norm_sums.hpp"
#include "trainer/step/device_clock.hpp"
#include "trainer/step/samples.hpp"
#include "trainer/step/step.hpp"
#include "trainer/step/step_graphs.hpp"

namespace rondo::trainer {

/// Borrowed. T is the type of parameters and gradients. `host` is the communicator of the same ranks
/// that is on no device.
template <class T>
struct DeviceStepParts {
  const TrainOptions& options;
  Device& device;
  Communicator& communicator;
  Communicator& host;
  Model<T>& model;
  DeviceWeights<T>& weights;
  RankSamples& samples;
  const std::atomic<bool>& stop;  // set by whoever wants the run to end
  DeviceClock& clock;
  ForwardListener& forward;    // of the steps, on the way to the clock
  BatchNormSums* statistics;   // of synchronized batch norm, or null
  double gradient_factor = 1;  // of the averaged gradients; not 1: a mistake on purpose

  /// For Device::watch().
  Status ranks_are_well() const {
    RONDO_TRY(communicator.status());
    return statistics != nullptr ? statistics->status() : Status();
  }
  /// See BatchNormSums::keep_together().
  void keep_together(bool together) const {
    if (statistics != nullptr) statistics->keep_together(together);
  }
};

/// One thread.
template <class T>
class DeviceStep : private BackwardListener {
 public:
  explicit DeviceStep(const DeviceStepParts<T>& parts);  // throws std::bad_alloc
  ~DeviceStep() override;
  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;

  /// Enqueues step `number` at this learning rate; reports the step before. After a failure
  /// parameters are those of no step.
  Result<StepResult> run(uint64_t number, double rate);
  /// Waits until the device has done what was enqueued: peers' parameters are there, too.
  Status settle();
  /// Waits for the last step; its report, unless it was returned.
  Result<std::optional<StepReport>> last();
  /// What was replayed.
  const StepGraphs& graphs() const { return graphs_; }

 private:
  /// What a step leaves for its report.
  struct StepUnderWay {
    uint64_t number, terms;
    bool stops;
    double data_wait_ms;
    Work::Times headers;
    Device::Event end;  // its results are in pinned memory
  };
  static constexpr size_t kLoss = 0, kUpdate = 1, kResults = 3;  // of a step, in doubles

  Status await_quiet();
  Result<Batch> read();
  Result<bool> replays(const DdpStep& all, const Pass& pass, const Batch& batch);
  Status quiet_pass(const Pass& pass, const Batch& batch);
  Status last_pass(const Pass& pass, const Batch& batch, bool is_first);
  Status compute(const Pass& pass, const Batch& batch);
  Status compute_first(const Pass& pass, const Batch& batch);
  Status update();
  Result<Device::Event> leave_results(uint64_t number);
  Status await_event(Device::Event event);
  Result<StepReport> report_of(const StepUnderWay& step);
  void layer_begins(int layer) override { clock_.backward_layer_begins(layer); }
  void gradient_ready(int parameter, size_t count) override;
  void gradient_skipped(int parameter) override;
  double* pinned(uint64_t number) { return pinned_.data() + number % 2 * kResults; }

  const DeviceStepParts<T> parts_;
  DistributedDataParallel& ddp_;
  DeviceArray<double> loss_;    // one, of the step under way
  PinnedArray<double> pinned_;  // the results of two steps, in turn
  DeviceClock& clock_;
  StepGraphs graphs_;
  Device::Event settled_ = nullptr;
  std::optional<StepUnderWay> enqueued_;  // the last step, if it is not reported
  bool stops_ = false;                    // some rank was to stop, in a reported step
  std::set<uint64_t> computed_;           // the terms of steps whose products have been computed
  int64_t data_wait_ns_ = 0;
};

}  // namespace rondo::trainer
