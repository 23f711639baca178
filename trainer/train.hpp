// A run from its parts to its summary: puts model, weights, samples, step and loop together. Knows
// no layers and no transports.
#pragma once

#include <atomic>

#include "rondo/communicator.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/step/device_strategy.hpp"

namespace rondo::trainer {

/// Every rank calls it with equal options and data; where they differ, every rank returns an error
/// that names the ranks. `validation` may be null. Rank 0 reports. On failure the communicator is aborted with the
/// reason, so that every rank returns it. Once `stop` is set on any rank, all end the run after the
/// same step, with a summary. `is_left_out`, if given: set where it failed because the others may have
/// gone on without this rank (--elastic); it then leaves what the run writes to them. `device`: where
/// options.on_gpu().
Status train(const TrainOptions& options, const Dataset& data, const Dataset* validation,
             Communicator& communicator, const std::atomic<bool>& stop, bool* is_left_out = nullptr,
             RankDevice* device = nullptr);

}  // namespace rondo::trainer
