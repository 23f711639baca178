// See step_graphs.hpp.
#include "trainer/step/step_graphs.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace rondo::trainer {
namespace {

/// Blocks that are left out and layers' times are other work in every step; a rank that is late or
/// reads the loss does so where forward is enqueued.
bool are_steps_alike(const TrainOptions& o) {
  return o.layer_drop == 0 && o.trace.empty() && o.sabotage != "straggler" &&
         o.sabotage != "lone-read";
}

}  // namespace

StepGraphs::StepGraphs(const GraphParts& parts)
    : parts_(parts), possible_(!parts.options.no_cuda_graph && are_steps_alike(parts.options)) {}

Result<bool> StepGraphs::replays(const DdpStep& step, const Capture& capture) {
  if (!possible_ || step.loss_terms != parts_.full_terms) return false;
  if (parts_.ddp.relayout().pending) return false;  // its buckets will be others
  if (++full_steps_ == kUsualSteps + 1) RONDO_TRY(make(capture));
  return last_ && full_steps_ % kMeasuredEvery != 0;
}

/// Making a graph may wait for all kernels on the GPU, which may wait for a rank of this process: so
/// no rank has any there, from the first meeting to the second. A pass that reduces no gradients comes
/// first, also where no step has one (of one micro-batch): if it cannot be captured, the gradients'
/// communicator has not seen it.
Status StepGraphs::make(const Capture& capture) {
  RONDO_TRY(capture.prepare());
  RONDO_TRY(parts_.host.barrier());
  Status passed, made = make_quiet(capture.quiet_pass);
  if (made.ok()) {
    const uint64_t sent = parts_.communicator.stats().bytes_sent;
    Result<DeviceGraph> last =
        DeviceGraph::capture(parts_.device, [&] { return passed = capture.last_pass(); });
    RONDO_TRY(passed);
    step_bytes_ = parts_.communicator.stats().bytes_sent - sent;
    made = last.status();
    if (made.ok()) last_ = std::move(*last);
  }
  if (!made.ok()) {
    possible_ = false;
    quiet_ = {};
    spdlog::info("rank {}: steps are not replayed from a graph: {}", parts_.host.rank(),
                 made.message());
  }
  RONDO_TRY(parts_.device.wait());
  return parts_.host.barrier();
}

Status StepGraphs::make_quiet(const std::function<Status()>& pass) {
  if (parts_.options.accum == 1) return DeviceGraph::try_capture(parts_.device, pass);
  quiet_ = RONDO_TRY(DeviceGraph::capture(parts_.device, pass));
  return {};
}

void StepGraphs::launch_last_pass() {
  last_.launch();
  ++replayed_;
}

}  // namespace rondo::trainer
