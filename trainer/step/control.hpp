// The control run: what computing and communicating take when they do not disturb each other. It
// makes a few passes without communication, and a few whose gradients are reduced after backward.
// It trains nothing: gradients are dropped, parameters and buffers are restored.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/data/loader.hpp"
#include "trainer/models/model.hpp"
#include "trainer/optim/weights.hpp"
#include "trainer/report/accounting.hpp"

namespace rondo::trainer {

/// Borrowed.
template <class T>
struct ControlParts {
  const TrainOptions& options;  // control_steps of each kind, after one of each to warm up
  const Dataset& data;
  const DistributedSampler& sampler;
  Communicator& communicator;
  Model<T>& model;
  Weights<T>& weights;
};

/// Collective, before the first step: every rank makes as many passes, so that what the model
/// exchanges keeps its order.
template <class T>
Result<ControlTimes> control_run(const ControlParts<T>& parts);

/// How many passes of each kind a run makes. The default is a tenth of its steps and at most 10. Runs
/// of fewer than 30 steps make none, nor do runs whose steps differ (--layer-drop) or which cannot
/// overlap (one rank, --strategy dp). `samples` is the number of samples of the data, from which the
/// steps of --epochs follow; if each rank has its own data, the number is 3.
uint64_t control_steps_of(const TrainOptions& options, uint64_t samples, int ranks);

/// Runs both kinds of passes by turns. Each returns its milliseconds. Shared with the control run of a
/// device (device_control.hpp).
Result<ControlTimes> control_rounds(uint64_t steps, const std::function<Result<double>()>& compute,
                                    const std::function<Result<double>()>& compute_then_reduce);

/// At its first batch, which is its next(): the loop's loader must not notice.
Result<std::unique_ptr<Loader>> open_control_loader(const TrainOptions& options,
                                                    const Dataset& data,
                                                    const DistributedSampler& sampler);

/// Keeps what a backward pass reports, to report it after the pass.
class BackwardNotes : public BackwardListener {
 public:
  void layer_begins(int /*layer*/) override {}
  void gradient_ready(int parameter, size_t count) override {
    ready_.emplace_back(static_cast<size_t>(parameter), count);
  }
  void gradient_skipped(int parameter) override {
    skipped_.push_back(static_cast<size_t>(parameter));
  }
  void forget() {
    ready_.clear();
    skipped_.clear();
  }
  void tell(DistributedDataParallel& ddp) const {
    for (const auto& [tensor, count] : ready_) ddp.gradient_ready(tensor, count);
    for (const size_t tensor : skipped_) ddp.gradient_skipped(tensor);
  }

 private:
  std::vector<std::pair<size_t, size_t>> ready_;
  std::vector<size_t> skipped_;
};

}  // namespace rondo::trainer
