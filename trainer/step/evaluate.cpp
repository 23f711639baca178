// See evaluate.hpp.
#include "trainer/step/evaluate.hpp"

#include <algorithm>
#include <cmath>

#include "trainer/data/loader.hpp"

namespace rondo::trainer {
namespace {

/// Of the batch just forwarded. The first of several that are equally likely counts.
template <class T>
size_t hits(const Model<T>& model, const Batch& batch) {
  const size_t classes = model.classes();
  const T* row = model.probabilities();
  size_t count = 0;
  for (size_t i = 0; i < batch.size * model.loss_terms(); ++i, row += classes) {
    const T* likeliest = std::max_element(row, row + classes);
    // Among NaN the first would be the largest.
    if (likeliest == row + batch.targets[i] && std::isfinite(*likeliest)) ++count;
  }
  return count;
}

}  // namespace

template <class T>
Result<Evaluation> evaluate(const TrainOptions& options, const Dataset& data, Model<T>& model,
                            Communicator& communicator) {
  const bool own_data = options.validation.find("{rank}") != std::string::npos;
  const DistributedSampler sampler(
      {.samples = data.samples(),
       .ranks = own_data ? 1 : static_cast<uint64_t>(communicator.size()),
       .rank = own_data ? 0 : static_cast<uint64_t>(communicator.rank()),
       .shuffle = false,
       .tail = DistributedSampler::Tail::kKeep});
  std::unique_ptr<Loader> loader = RONDO_TRY(
      Loader::create(data, sampler, {.batch = options.batch, .workers = options.workers}));
  loader->start_epoch({});
  double sums[3] = {0, 0, 0};  // of losses, samples and hits
  while (loader->batches_left() > 0) {
    const Batch batch = RONDO_TRY(loader->next());
    const double loss = RONDO_TRY(model.forward(batch, {.training = false, .seed = 0, .step = 0}));
    sums[0] += loss;
    sums[1] += static_cast<double>(batch.size);
    sums[2] += static_cast<double>(hits(model, batch));
  }
  RONDO_TRY(communicator.all_reduce(sums, sums, 3, DataType::kFloat64));
  const double terms = sums[1] * static_cast<double>(model.loss_terms());
  return Evaluation{.loss = sums[0] / terms,
                    .accuracy = sums[2] / terms,
                    .samples = static_cast<uint64_t>(sums[1])};
}

template Result<Evaluation> evaluate(const TrainOptions&, const Dataset&, Model<float>&,
                                     Communicator&);
template Result<Evaluation> evaluate(const TrainOptions&, const Dataset&, Model<double>&,
                                     Communicator&);

}  // namespace rondo::trainer
