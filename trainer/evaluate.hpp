// The loss on data that is not trained on: every sample once, each rank its share, so that the mean
// is exact whatever the number of ranks.
#pragma once

#include "rondo/communicator.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/model.hpp"
#include "trainer/options.hpp"

namespace rondo::trainer {

struct Evaluation {
  double loss;  // mean over all loss terms of all ranks
  uint64_t samples;
};

/// Collective. Changes nothing of the model but its activations.
template <class T>
Result<Evaluation> evaluate(const Options& options, const Dataset& data, Model<T>& model,
                            Communicator& communicator);

}  // namespace rondo::trainer
