// The training loop: samples, forward, backward with all-reduces under way, optimizer, report.
// Knows no layers and no transports, and is the only part that puts the others together.
#pragma once

#include "rondo/communicator.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/options.hpp"

namespace rondo::trainer {

/// Every rank calls it with equal options and data; ranks that differ all get an error that says
/// which. `validation` may be null. Rank 0 reports. On failure the communicator is aborted with the
/// reason, so that every rank returns it.
Status train(const Options& options, const Dataset& data, const Dataset* validation,
             Communicator& communicator);

}  // namespace rondo::trainer
