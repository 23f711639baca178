// Whole models on a GPU, beside the same models in the host's memory, in double.
#include "tests/trainer/cuda/models_rig.hpp"

namespace rondo::trainer::models_cuda_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

TEST_CASE("models on a GPU: losses, hits and every gradient are the host's") {
  auto device = Device::open(0);
  REQUIRE(device.ok());
  GptShape shape = kPacked;
  shape.dropout = 0.2;
  train_gpt<float>(**device, shape);
  train_gpt<BFloat16Bits>(**device, shape);
  train_gpt<Float16Bits>(**device, shape);

  const MlpShape wide{.layers = 2, .width = 80, .batch = 5};
  OnHost mlp_host(make_mlp<double>(wide));
  auto mlp = make_cuda_mlp<float>(**device, wide);
  REQUIRE(mlp.ok());
  OnDevice<float> mlps(**device, std::move(*mlp), mlp_host);
  mlps.step(Samples(5, MlpShape::kContext, 0, 1, MlpShape::kClasses).part(0, 5), kTraining, 0.5);

  const CnnShape images{.layers = 3, .width = 3, .channels = 2, .classes = 5, .batch = 18};
  OnHost cnn_host(make_cnn<double>(images, nullptr));
  auto cnn = make_cuda_cnn<float>(**device, images, nullptr);
  REQUIRE(cnn.ok());
  OnDevice<float> cnns(**device, std::move(*cnn), cnn_host);
  const size_t pixels = images.channels * images.height * images.width_pixels;
  cnns.step(Samples(18, 0, pixels, 1, images.classes).part(0, 18), kTraining, 0.5);
}

}  // namespace rondo::trainer::models_cuda_test
