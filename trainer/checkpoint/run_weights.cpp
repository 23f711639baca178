// A run's parameters from, and to, a file of GPT-2's weights. See checkpointing.hpp.
#include <spdlog/spdlog.h>

#include "trainer/checkpoint/checkpointing.hpp"
#include "trainer/checkpoint/gpt2_weights.hpp"

namespace rondo::trainer {
namespace {

template <class T>
std::vector<T*> parameter_pointers(Weights<T>& weights) {
  std::vector<T*> values;
  for (size_t t = 0; t < weights.ddp().tensors().size(); ++t) {
    values.push_back(weights.ddp().tensors()[t].adds_to < 0 ? weights.ddp().template parameter<T>(t)
                                                            : nullptr);
  }
  return values;
}

}  // namespace

template <class T>
Status load_weights(const TrainOptions& options, const Communicator& communicator,
                    const Model<T>& model, Weights<T>& weights) {
  if (communicator.rank() != 0) return {};
  if (options.width != options.heads * kGpt2HeadWidth) {
    spdlog::warn(
        "--heads {}: '{}' does not say how many heads its model has; those of --width {} are {} "
        "wide "
        "with this flag, GPT-2's are {}",
        options.heads, options.weights, options.width, options.width / options.heads,
        kGpt2HeadWidth);
  }
  const TensorFile file = RONDO_TRY(TensorFile::open(options.weights));
  return load_gpt2_weights<T>(file, model.parameters(), parameter_pointers(weights));
}

template <class T>
Status save_weights(const std::string& path, const Communicator& communicator,
                    const Model<T>& model, Weights<T>& weights) {
  if (communicator.rank() != 0) return {};
  const std::vector<T*> values = parameter_pointers(weights);
  return save_gpt2_weights<T>(path, model.parameters(), {values.begin(), values.end()});
}

template Status load_weights(const TrainOptions&, const Communicator&, const Model<float>&,
                             Weights<float>&);
template Status load_weights(const TrainOptions&, const Communicator&, const Model<double>&,
                             Weights<double>&);
template Status save_weights(const std::string&, const Communicator&, const Model<float>&,
                             Weights<float>&);
template Status save_weights(const std::string&, const Communicator&, const Model<double>&,
                             Weights<double>&);

}  // namespace rondo::trainer
