// See mlp.hpp.
#include "trainer/models/mlp.hpp"

#include "trainer/layers/host/layers_on_host.hpp"
#include "trainer/models/mlp_model.hpp"

namespace rondo::trainer {

template <class T>
std::unique_ptr<Model<T>> make_mlp(const MlpShape& shape) {
  return std::make_unique<Mlp<LayersOnHost<T>>>(LayersOnHost<T>(), shape);
}

template std::unique_ptr<Model<float>> make_mlp(const MlpShape&);
template std::unique_ptr<Model<double>> make_mlp(const MlpShape&);

}  // namespace rondo::trainer
