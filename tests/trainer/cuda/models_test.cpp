// Whole models on a device, over the stand-in, beside the same models in the host's memory, in
// double: losses, hits, every gradient, running statistics.
#include "tests/trainer/cuda/fake_device.hpp"
#include "tests/trainer/cuda/models_rig.hpp"

namespace rondo::trainer::cuda_models_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

struct World : FakeDevice {
  template <class T>
  OnDevice<T> pair(Result<std::unique_ptr<Model<T>>> made, OnHost& host) {
    REQUIRE(made.ok());
    return OnDevice<T>(*device, std::move(*made), host);
  }
};

CnnShape cnn_shape(size_t layers, size_t batch) {
  return {.layers = layers,
          .width = 3,
          .channels = 2,
          .height = 9,
          .width_pixels = 10,
          .classes = 5,
          .batch = batch};
}

template <class T>
void train_cnn(const CnnShape& shape) {
  INFO("layers " << shape.layers << ", batch norm " << shape.batch_norm << ", average "
                 << shape.average);
  World world;
  // A rank with a twin: the host's has the same sums twice, the device enqueues that.
  const SumOverRanks twice = [](double* values, size_t count) {
    for (size_t i = 0; i < count; ++i) values[i] *= 2;
    return Status{};
  };
  const SumOverRanks twice_on_device = [&](double* values, size_t count) {
    world.gpu->enqueue(world.device->stream(), [=] { (void)twice(values, count); });
    return Status{};
  };
  OnHost host(make_cnn<double>(shape, twice));
  auto both = world.pair<T>(make_cuda_cnn<T>(*world.device, shape, twice_on_device), host);
  const Samples samples(shape.batch, 0, shape.channels * shape.height * shape.width_pixels, 1,
                        shape.classes);
  both.step(samples.part(0, shape.batch), kTraining, 0.5);
  both.step(samples.part(1, 2), kTraining, 1, true);
  both.step(samples.part(0, 3), kEvaluation);
  both.step(samples.part(0, 0), kTraining, 1, false);
}

}  // namespace

TEST_CASE("gpt on a device: losses, hits and every gradient are the host's") {
  World world;
  GptShape odd = kPacked;  // no packs, heads of 9 and 37 numbers
  odd.layers = 1;
  odd.width = 27;
  odd.heads = 3;
  odd.vocabulary = 37;
  train_gpt<float>(*world.device, odd);
  odd.width = 37;
  odd.heads = 1;
  train_gpt<float>(*world.device, odd);
  train_gpt<float>(*world.device, kPacked);
  train_gpt<BFloat16Bits>(*world.device, kPacked);
  train_gpt<Float16Bits>(*world.device, kPacked);
}

TEST_CASE("gpt on a device: dropout and LayerDrop leave out what the host leaves out") {
  GptShape shape = kPacked;
  shape.dropout = 0.2;
  World world;
  train_gpt<float>(*world.device, shape);
  shape.layer_drop = 0.5;
  OnHost host(make_gpt<double>(shape));
  auto both = world.pair<float>(make_cuda_gpt<float>(*world.device, shape), host);
  const Samples samples = samples_of(shape);
  for (uint64_t step = 0; step < 4; ++step) {
    const Pass pass{.training = true, .seed = 1, .step = step};
    both.step(samples.part(step % 2, 2), pass, 1, step > 0);
  }
}

TEST_CASE("mlp on a device: losses, hits and every gradient are the host's") {
  for (const size_t width : {32, 80}) {
    const MlpShape shape{.layers = 2, .width = width, .batch = 5};
    const Samples samples(5, MlpShape::kContext, 0, 1, MlpShape::kClasses);
    const auto train = [&]<class T>(T) {
      World world;
      OnHost host(make_mlp<double>(shape));
      auto both = world.pair<T>(make_cuda_mlp<T>(*world.device, shape), host);
      both.step(samples.part(0, 5), kTraining, 0.5);
      both.step(samples.part(3, 2), kTraining, 1, true);
      both.step(samples.part(0, 4), kEvaluation);
      both.step(samples.part(0, 0), kTraining);
    };
    train(float{});
    train(BFloat16Bits{});
    train(Float16Bits{});
  }
}

TEST_CASE("models on a device: the loss is scaled by what is in memory when its gradient is made") {
  const MlpShape shape{.layers = 1, .width = 32, .batch = 5};
  const Samples samples(5, MlpShape::kContext, 0, 1, MlpShape::kClasses);
  World world;
  OnHost host(make_mlp<double>(shape));
  auto both = world.pair<Float16Bits>(make_cuda_mlp<Float16Bits>(*world.device, shape), host);
  DeviceArray<float> factors(*world.device, 2);
  Pass pass = kTraining;
  pass.loss_factors = {.of_step = factors.data(), .scale = factors.data() + 1};
  const Batch batch = samples.part(0, 5);
  Listener listener;
  // Without the scale these gradients are less than any half.
  const float small[] = {0x1p-30f, 0x1p30f}, large[] = {0.5f, 6};
  for (const auto& [values, product] : {std::pair(small, 1.0), std::pair(large, 3.0)}) {
    world.device->copy(factors.data(), values, factors.bytes());
    REQUIRE(world.device->wait().ok());
    double loss = 0;
    REQUIRE(host.model->forward(batch, kTraining, &loss).ok());
    REQUIRE(host.model->backward(batch, kTraining, product, false, listener).ok());
    REQUIRE(both.model->forward(batch, pass, both.sums.data()).ok());
    REQUIRE(both.model->backward(batch, pass, 1, false, listener).ok());
    both.compare_gradients();
  }
  world.device->clear(both.sums.data(), both.sums.bytes());
  double loss = 0;
  REQUIRE(host.model->forward(batch, kTraining, &loss).ok());
  REQUIRE(both.model->forward(batch, pass, both.sums.data()).ok());
  CHECK(both.fetch(both.sums)[0] == Approx(loss).epsilon(1e-2));  // the loss itself is not scaled
}

TEST_CASE("cnn on a device: losses, gradients and running statistics are the host's") {
  CnnShape shape = cnn_shape(3, 18);  // more samples than a slice has
  train_cnn<float>(shape);
  shape.synchronized = true;
  train_cnn<float>(shape);
  shape = cnn_shape(2, 4);
  shape.average = true;
  train_cnn<float>(shape);
  shape.batch_norm = false;
  train_cnn<float>(shape);
  train_cnn<BFloat16Bits>(shape);
  train_cnn<Float16Bits>(shape);
}

TEST_CASE("models on a device: passes return before anything has run, and batches may be reused") {
  World world;
  OnHost host(make_gpt<double>(kPacked));
  auto both = world.pair<float>(make_cuda_gpt<float>(*world.device, kPacked), host);
  const Samples samples = samples_of(kPacked);
  double loss = 0;
  Listener listener;
  // Micro-batches, each in the memory of the one before.
  Samples reused = samples;
  world.hold();
  for (size_t sample = 0; sample < 3; ++sample) {
    const Batch batch = samples.part(sample, 1);
    REQUIRE(host.model->forward(batch, kTraining, &loss).ok());
    REQUIRE(host.model->backward(batch, kTraining, 1, sample > 0, listener).ok());
    std::copy_n(batch.tokens, kPacked.context, reused.tokens.begin());
    std::copy_n(batch.targets, kPacked.context, reused.targets.begin());
    REQUIRE(both.model->forward(reused.part(0, 1), kTraining, both.sums.data()).ok());
    REQUIRE(both.model->backward(reused.part(0, 1), kTraining, 1, sample > 0, listener).ok());
  }
  std::fill(reused.tokens.begin(), reused.tokens.end(), 0);
  CHECK(both.sums.data()[0] == 0);  // this device's memory is the host's
  CHECK(both.gradients[0].data()[0] == 0.25f);
  world.let_go();
  CHECK(std::abs(both.fetch(both.sums)[0] - loss) < 1e-6 * loss);
  both.compare_gradients();
}

TEST_CASE("models on a device: the same bits from run to run, also after other passes", "[again]") {
  const auto run = [](bool busy) {
    World world;
    OnHost host(make_gpt<double>(kPacked));
    auto both = world.pair<BFloat16Bits>(make_cuda_gpt<BFloat16Bits>(*world.device, kPacked), host);
    const Samples samples = samples_of(kPacked);
    if (busy) both.step(samples.part(0, 3), kTraining);
    both.step(samples.part(1, 2), kTraining);
    std::vector<uint16_t> bits;
    for (const auto& gradient : both.gradients) {
      for (const BFloat16Bits element : both.fetch(gradient)) bits.push_back(element.bits);
    }
    return bits;
  };
  CHECK(run(false) == run(true));
}

TEST_CASE("models on a device: a call that fails fails its pass, and what follows") {
  World world;
  OnHost host(make_mlp<double>({.layers = 1, .width = 32, .batch = 2}));
  auto both = world.pair<float>(
      make_cuda_mlp<float>(*world.device, {.layers = 1, .width = 32, .batch = 2}), host);
  const Samples samples(2, MlpShape::kContext, 0, 1, MlpShape::kClasses);
  const Batch batch = samples.part(0, 2);
  Listener listener;
  REQUIRE(both.model->forward(batch, kTraining, both.sums.data()).ok());
  REQUIRE(world.device->wait().ok());
  world.gpu->fail_at = world.gpu->calls + 1;
  const Status failed = both.model->backward(batch, kTraining, 1, false, listener);
  world.gpu->fail_at = -1;
  REQUIRE_FALSE(failed.ok());
  CHECK(both.model->forward(batch, kTraining, both.sums.data()).message() == failed.message());
}

}  // namespace rondo::trainer::cuda_models_test
