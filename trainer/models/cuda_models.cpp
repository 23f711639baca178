// See cuda_models.hpp.
#include "trainer/models/cuda_models.hpp"

#include "trainer/layers/cuda/layers_on_device.hpp"
#include "trainer/models/cnn_model.hpp"
#include "trainer/models/gpt_model.hpp"
#include "trainer/models/mlp_model.hpp"

namespace rondo::trainer {
namespace {

/// Net<layers on the device>.
template <class T, template <class> class Net, class... Arguments>
Result<std::unique_ptr<Model<T>>> make(Device& device, Arguments&&... arguments) {
  auto products = RONDO_TRY(cuda::open_products(device));
  using Layers = cuda::LayersOnDevice<T>;
  return std::unique_ptr<Model<T>>(std::make_unique<Net<Layers>>(
      Layers(device, std::move(products)), std::forward<Arguments>(arguments)...));
}

}  // namespace

template <class T>
Result<std::unique_ptr<Model<T>>> make_cuda_gpt(Device& device, const GptShape& shape) {
  GptShape own = shape;
  own.split_tied = false;
  return make<T, Gpt>(device, own);
}

template <class T>
Result<std::unique_ptr<Model<T>>> make_cuda_mlp(Device& device, const MlpShape& shape) {
  return make<T, Mlp>(device, shape);
}

template <class T>
Result<std::unique_ptr<Model<T>>> make_cuda_cnn(Device& device, const CnnShape& shape,
                                                SumOverRanks sum) {
  return make<T, Cnn>(device, shape, std::move(sum));
}

template Result<std::unique_ptr<Model<float>>> make_cuda_gpt(Device&, const GptShape&);
template Result<std::unique_ptr<Model<float>>> make_cuda_mlp(Device&, const MlpShape&);
template Result<std::unique_ptr<Model<float>>> make_cuda_cnn(Device&, const CnnShape&,
                                                             SumOverRanks);
template Result<std::unique_ptr<Model<cuda::BFloat16Bits>>> make_cuda_gpt(Device&, const GptShape&);
template Result<std::unique_ptr<Model<cuda::BFloat16Bits>>> make_cuda_mlp(Device&, const MlpShape&);
template Result<std::unique_ptr<Model<cuda::BFloat16Bits>>> make_cuda_cnn(Device&, const CnnShape&,
                                                                          SumOverRanks);
template Result<std::unique_ptr<Model<cuda::Float16Bits>>> make_cuda_gpt(Device&, const GptShape&);
template Result<std::unique_ptr<Model<cuda::Float16Bits>>> make_cuda_mlp(Device&, const MlpShape&);
template Result<std::unique_ptr<Model<cuda::Float16Bits>>> make_cuda_cnn(Device&, const CnnShape&,
                                                                         SumOverRanks);

}  // namespace rondo::trainer
