// See evaluate.hpp.
#include "trainer/step/evaluate.hpp"

#include "trainer/data/loader.hpp"

namespace rondo::trainer {
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
    RONDO_TRY(model.forward(batch, {.training = false, .seed = 0, .step = 0}, &sums[0]));
    RONDO_TRY(model.count_correct(batch, &sums[2]));
    sums[1] += static_cast<double>(batch.size);
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
