// The whole network: every gradient against central differences, the order in which gradients
// become final, evaluation, empty batches.
#include "trainer/models/cnn.hpp"

#include "tests/trainer/cnn_rig.hpp"
#include "tests/trainer/layer_values.hpp"

namespace rondo::trainer::cnn_test {

using namespace rondo;
using namespace rondo::trainer::testing;

namespace {

CnnShape without_norm(size_t batch) {
  CnnShape shape = small(batch);
  shape.batch_norm = false;
  return shape;
}

}  // namespace

TEST_CASE("cnn: the gradient of every parameter equals central differences") {
  CnnShape shape = small(3);
  SECTION("two blocks, flat") {}
  SECTION("three blocks") { shape.layers = 3; }
  SECTION("averages") { shape.average = true; }
  SECTION("without batch normalisation") { shape.batch_norm = false; }
  SECTION("one block") { shape.layers = 1; }
  const Samples samples(shape, 3);
  CnnRig<double> rig(shape);
  check_gradients(rig, samples.all(), kTraining, 1e-6);
}

TEST_CASE("cnn: gradients become final in parameter order, layer by layer, and stay") {
  const Samples samples(small(3), 3);
  CnnRig<double> rig(small(3));
  check_final_gradients(rig, samples.all());
  CHECK(rig.listener.events == std::vector<std::string>{"layer linear", "linear.bias",
                                                        "linear.weight", "layer bn2", "bn2.bias",
                                                        "bn2.weight", "layer conv2", "conv2.weight",
                                                        "layer bn1", "bn1.bias", "bn1.weight",
                                                        "layer conv1", "conv1.weight"});
  CHECK(rig.listener.order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});

  CnnRig<double> plain(without_norm(3));
  plain.train(samples.all());
  CHECK(plain.listener.events ==
        std::vector<std::string>{"layer linear", "linear.bias", "linear.weight", "layer conv2",
                                 "conv2.bias", "conv2.weight", "layer conv1", "conv1.bias",
                                 "conv1.weight"});
  CHECK(plain.model->buffers().empty());
}

TEST_CASE("cnn: micro-batches accumulate") {
  const Samples samples(small(4), 4);
  CnnRig<double> rig(without_norm(4));  // with it, micro-batches are normalised by themselves
  check_parts_add_up(rig, samples.all(), {samples.share(0, 1), samples.share(1, 3)});

  CnnRig<double> normed(small(4));
  normed.train(samples.all());
  const auto once = normed.gradients;
  normed.train(samples.all(), 1, true);
  for (size_t p = 0; p < once.size(); ++p) {
    CHECK(relative_difference(normed.gradients[p], doubled(once[p])) < 1e-12);
  }
}

TEST_CASE("cnn: an empty batch has no loss, a zero gradient, and leaves the buffers alone") {
  const Samples samples(small(4), 4);
  for (const CnnShape& shape : {small(4), without_norm(4)}) {
    CnnRig<double> rig(shape);
    rig.train(samples.all());
    check_empty_batch(rig, samples.share(0, 0));
    CHECK(rig.loss(samples.share(0, 0), kEvaluation) == 0);
  }
}

TEST_CASE("cnn: evaluation uses the running statistics and changes nothing") {
  CnnShape shape = small(4);
  shape.momentum = 1;  // what runs is the last batch
  const Samples samples(shape, 4);
  CnnRig<double> rig(shape);
  const double training = rig.loss(samples.all());
  const auto buffers = rig.buffers;
  CHECK(rig.model->buffers()[0].name == "bn1.running_mean");
  CHECK(rig.model->buffers()[5].name == "bn2.num_batches");
  CHECK(buffers[2][0] == 1);
  const double evaluated = rig.loss(samples.all(), kEvaluation);
  CHECK(rig.buffers == buffers);
  // Only the factor n / (n - 1) of the variance is between them: n = 4 x 42 and 4 x 9.
  CHECK(evaluated != training);
  CHECK(evaluated == Approx(training).epsilon(0.05));
  // Samples no longer know each other.
  double sum = 0;
  for (size_t i = 0; i < 4; ++i) sum += rig.loss(samples.share(i, 1), kEvaluation);
  CHECK(sum == Approx(evaluated).epsilon(1e-13));
}

TEST_CASE("cnn: float follows double") {
  const CnnShape shape{.layers = 3, .width = 8, .height = 14, .width_pixels = 14, .batch = 9};
  CnnRig<float> narrow(shape);
  CnnRig<double> wide(shape);
  const Samples samples(shape, 9);
  check_float_follows_double(narrow, wide, samples.all(), 1e-5);
}

TEST_CASE("cnn: shapes, operations and memory are those of the description") {
  const CnnRig<float> one({.batch = 1});
  CHECK(one.parameter_count() == 16 * 9 + 2 * 16 + 32 * 16 * 9 + 2 * 32 + 10 * 32 * 7 * 7 + 10);
  CHECK(one.model->gemm_operations() ==
        4.0 * (16 * 9) * (28 * 28) + 6.0 * (32 * 16 * 9) * (14 * 14) + 6.0 * 10 * (32 * 7 * 7));
  // A sample more costs: two images of each block's size (before and after normalisation), two
  // pooled ones with where they were pooled from, the image, the logits, and two gradients.
  const size_t first = 16 * 28 * 28, second = 32 * 14 * 14;
  const size_t sample =
      sizeof(float) * (2 * first + 2 * second + first / 4 + second / 4 + 28 * 28 + 10 + 2 * first) +
      first / 4 + second / 4;
  const CnnRig<float> three({.batch = 3});
  CHECK(three.model->activation_bytes() - one.model->activation_bytes() == 2 * sample);
}

}  // namespace rondo::trainer::cnn_test
