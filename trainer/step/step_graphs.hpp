// Which steps on a device are replayed from graphs, and these graphs. Only full steps are, in which
// every rank has as many samples as it can have: all ranks know of each other which ones are, and each
// enqueues the same in all of them.
#pragma once

#include <cstdint>
#include <functional>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/base/device_graph.hpp"
#include "trainer/cli/options.hpp"

namespace rondo::trainer {

/// One thread. Ends before what it borrows, after what was launched.
class StepGraphs {
 public:
  /// Full steps are enqueued as usual first, so that everything is allocated and chosen; the next one
  /// is captured. From then on one of so many is enqueued as usual, and measured.
  static constexpr uint64_t kUsualSteps = 2, kMeasuredEvery = 64;

  struct GraphParts {
    const TrainOptions& options;
    Device& device;
    Communicator& communicator;
    Communicator& host;  // of the same ranks
    const DistributedDataParallel& ddp;
    uint64_t full_terms;  // of the loss, of all ranks, in a full step
  };
  explicit StepGraphs(const GraphParts& parts);

  /// What is captured, and what comes before: it waits until nothing of this rank is on the device.
  struct Capture {
    std::function<Status()> prepare;
    std::function<Status()> quiet_pass;  // of all micro-batches but the last
    std::function<Status()> last_pass;   // with the rest of the step
  };
  /// Collective. Whether the step with these headers is replayed, for which it may be captured first.
  /// An error is the run's. A rank that can make no graph has none, and replays nothing.
  Result<bool> replays(const DdpStep& step, const Capture& capture);
  /// REQUIRES: replays(); --accum of more than 1. An error is the device's.
  void launch_quiet_pass() { quiet_.launch(); }
  /// REQUIRES: replays(). An error is the device's.
  void launch_last_pass();

  uint64_t steps() const { return replayed_; }
  /// To be added, modulo 2^64, to what the communicator has counted as sent by this rank: that knows of
  /// no replay, but of the captured step, which was not made.
  uint64_t uncounted_bytes() const { return (replayed_ - 1) * step_bytes_; }

 private:
  Status make(const Capture& capture);
  Status make_quiet(const std::function<Status()>& pass);

  const GraphParts parts_;
  bool possible_;
  uint64_t full_steps_ = 0, replayed_ = 0, step_bytes_ = 0;
  DeviceGraph quiet_, last_;  // quiet_: where steps have such passes
};

}  // namespace rondo::trainer
