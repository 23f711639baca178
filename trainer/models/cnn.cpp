// See cnn.hpp.
#include "trainer/models/cnn.hpp"

#include "trainer/layers/host/layers_on_host.hpp"
#include "trainer/models/cnn_model.hpp"

namespace rondo::trainer {

template <class T>
std::unique_ptr<Model<T>> make_cnn(const CnnShape& shape, SumOverRanks sum) {
  return std::make_unique<Cnn<LayersOnHost<T>>>(LayersOnHost<T>(), shape, std::move(sum));
}

template std::unique_ptr<Model<float>> make_cnn(const CnnShape&, SumOverRanks);
template std::unique_ptr<Model<double>> make_cnn(const CnnShape&, SumOverRanks);

}  // namespace rondo::trainer
