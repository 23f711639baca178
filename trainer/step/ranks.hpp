// What ranks exchange besides gradients: a few words before the first step and after the last, to
// find ranks that differ.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/communicator.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"

namespace rondo::trainer {

/// Two words of every rank, in rank order: rank r's are [2 r] and [2 r + 1].
Result<std::vector<uint64_t>> gather_words(Communicator& communicator, const uint64_t (&mine)[2]);

/// The CPUs that the ranks together may run on. Collective.
Result<uint64_t> count_cores(Communicator& communicator);

/// kMismatch on every rank, naming the ranks, if any has options that shape the training, or data,
/// other than rank 0's. `validation` may be null.
Status require_agreement(Communicator& communicator, const TrainOptions& options,
                         const Dataset& data, const Dataset* validation);

}  // namespace rondo::trainer
