// Which optimizer the options mean. See optimizer.hpp.
#include "trainer/optim/optimizer.hpp"

namespace rondo::trainer {

template <class T>
std::unique_ptr<Optimizer<T>> make_optimizer(const OptimizerOptions& options, size_t count) {
  if (const auto* adamw = std::get_if<AdamWOptions>(&options)) return make_adamw<T>(*adamw, count);
  return make_sgd<T>(std::get<SgdOptions>(options), count);
}

template std::unique_ptr<Optimizer<float>> make_optimizer(const OptimizerOptions&, size_t);
template std::unique_ptr<Optimizer<double>> make_optimizer(const OptimizerOptions&, size_t);

}  // namespace rondo::trainer
