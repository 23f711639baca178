// The control run: what computing and communicating take when they do not disturb each other. It
// makes a few passes without communication, and a few whose gradients are reduced after backward.
// It trains nothing: gradients are dropped, parameters and buffers are restored.
#pragma once

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
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

}  // namespace rondo::trainer
