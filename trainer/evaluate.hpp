// The loss on data that is not trained on, and how often the target was thought the likeliest:
// every sample once, each rank its share, so that the means are exact whatever the number of ranks.
#pragma once

#include "rondo/communicator.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/model.hpp"
#include "trainer/options.hpp"

namespace rondo::trainer {

struct Evaluation {
  double loss;      // mean over all loss terms of all ranks
  double accuracy;  // share of the terms whose target was the likeliest class
  uint64_t samples;
};

/// Collective. Changes nothing of the model but its activations.
template <class T>
Result<Evaluation> evaluate(const Options& options, const Dataset& data, Model<T>& model,
                            Communicator& communicator);

}  // namespace rondo::trainer
