// See gpt.hpp.
#include "trainer/models/gpt.hpp"

#include "trainer/layers/host/layers_on_host.hpp"
#include "trainer/models/gpt_model.hpp"

namespace rondo::trainer {

template <class T>
std::unique_ptr<Model<T>> make_gpt(const GptShape& shape) {
  return std::make_unique<Gpt<LayersOnHost<T>>>(LayersOnHost<T>(), shape);
}

template std::unique_ptr<Model<float>> make_gpt(const GptShape&);
template std::unique_ptr<Model<double>> make_gpt(const GptShape&);

}  // namespace rondo::trainer
