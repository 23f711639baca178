// The loss and the accuracy on data that is not trained on. Each rank evaluates its share, every
// sample once, so that the means are exact for any number of ranks.
#pragma once

#include "rondo/communicator.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer {

struct Evaluation {
  double loss;      // mean over all loss terms of all ranks
  double accuracy;  // share of the terms whose target was the likeliest class
  uint64_t samples;
};

/// Collective. Changes nothing of the model but its activations.
template <class T>
Result<Evaluation> evaluate(const TrainOptions& options, const Dataset& data, Model<T>& model,
                            Communicator& communicator);

}  // namespace rondo::trainer
