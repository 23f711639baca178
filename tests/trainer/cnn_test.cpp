// The whole network: every gradient against central differences, the order in which gradients
// become final, evaluation, empty batches.
#include "trainer/models/cnn.hpp"

#include "tests/trainer/cnn_rig.hpp"
#include "tests/trainer/gradient_check.hpp"

namespace rondo::trainer::cnn_test {

using namespace rondo;
using namespace rondo::trainer::testing;

TEST_CASE("cnn: the gradient of every parameter equals central differences") {
  CnnShape shape = small(3);
  SECTION("two blocks, flat") {}
  SECTION("three blocks") { shape.layers = 3; }
  SECTION("averages") { shape.average = true; }
  SECTION("without batch normalisation") { shape.batch_norm = false; }
  SECTION("one block") { shape.layers = 1; }
  const Samples samples(shape, 3);
  Rig<double> rig(shape);
  rig.train(samples.all(), 0.25);
  const auto loss = [&] { return 0.25 * rig.loss(samples.all()); };
  for (size_t p = 0; p < rig.values.size(); ++p) {
    INFO(rig.model->parameters()[p].name);
    REQUIRE(largest(rig.gradients[p]) > 1e-6);  // none of them for nothing
    check_gradient(rig.values[p], rig.gradients[p], loss, 1e-6);
  }
}

TEST_CASE("cnn: gradients become final in parameter order, layer by layer") {
  Rig<double> rig(small(2));
  rig.train(Samples(small(2), 2).all());
  CHECK(rig.listener.events == std::vector<std::string>{"layer linear", "linear.bias",
                                                        "linear.weight", "layer bn2", "bn2.bias",
                                                        "bn2.weight", "layer conv2", "conv2.weight",
                                                        "layer bn1", "bn1.bias", "bn1.weight",
                                                        "layer conv1", "conv1.weight"});
  CHECK(rig.listener.order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});

  CnnShape plain = small(2);
  plain.batch_norm = false;
  Rig<double> other(plain);
  other.train(Samples(plain, 2).all());
  CHECK(other.listener.events ==
        std::vector<std::string>{"layer linear", "linear.bias", "linear.weight", "layer conv2",
                                 "conv2.bias", "conv2.weight", "layer conv1", "conv1.bias",
                                 "conv1.weight"});
  CHECK(other.model->buffers().empty());
}

namespace {

/// Spoils each gradient as soon as it is said to be final, after keeping it.
struct Spoiler : BackwardListener {
  explicit Spoiler(std::vector<std::vector<double>>& gradients) : gradients_(gradients) {}
  void layer_begins(int) override {}
  void gradient_ready(int parameter, size_t) override {
    auto& gradient = gradients_[static_cast<size_t>(parameter)];
    kept.push_back(gradient);
    std::fill(gradient.begin(), gradient.end(), -1e300);
  }
  void gradient_skipped(int) override {}
  std::vector<std::vector<double>>& gradients_;
  std::vector<std::vector<double>> kept;
};

}  // namespace

TEST_CASE("cnn: a final gradient is neither written nor read again; the same bits every time") {
  const Samples samples(small(3), 3);
  Rig<double> rig(small(3));
  rig.train(samples.all());
  const auto expected = rig.gradients;
  Spoiler spoiler(rig.gradients);
  rig.loss(samples.all());
  REQUIRE(rig.model->backward(samples.all(), kTraining, 1, false, spoiler).ok());
  CHECK(spoiler.kept == expected);
  for (const auto& gradient : rig.gradients) {
    CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == -1e300; }));
  }
}

TEST_CASE("cnn: micro-batches accumulate") {
  CnnShape shape = small(4);
  shape.batch_norm = false;  // with it, micro-batches are normalised by themselves
  const Samples samples(shape, 4);
  Rig<double> rig(shape);
  const double whole = rig.train(samples.all());
  const auto expected = rig.gradients;
  double sum = rig.train(samples.share(0, 1));
  sum += rig.train(samples.share(1, 3), 1, true);
  CHECK(sum == Approx(whole).epsilon(1e-13));
  for (size_t p = 0; p < expected.size(); ++p) {
    CHECK(relative_difference(rig.gradients[p], expected[p]) < 1e-12);
  }

  Rig<double> normed(small(4));
  normed.train(samples.all());
  auto doubled = normed.gradients;
  for (auto& gradient : doubled) {
    for (double& g : gradient) g *= 2;
  }
  normed.train(samples.all(), 1, true);
  for (size_t p = 0; p < doubled.size(); ++p) {
    CHECK(relative_difference(normed.gradients[p], doubled[p]) < 1e-12);
  }
}

TEST_CASE("cnn: an empty batch has no loss, a zero gradient, and leaves the buffers alone") {
  for (const bool batch_norm : {true, false}) {
    CnnShape shape = small(4);
    shape.batch_norm = batch_norm;
    const Samples samples(shape, 4);
    Rig<double> rig(shape);
    rig.train(samples.all());
    const auto gradients = rig.gradients, buffers = rig.buffers;
    CHECK(rig.train(samples.share(0, 0), 1, true) == 0);
    CHECK(rig.gradients == gradients);
    rig.listener.order.clear();
    CHECK(rig.train(samples.share(0, 0)) == 0);
    CHECK(rig.listener.order.size() == gradients.size());
    for (const auto& gradient : rig.gradients) CHECK(largest(gradient) == 0);
    CHECK(rig.buffers == buffers);
    CHECK(rig.loss(samples.share(0, 0), kEvaluation) == 0);
  }
}

TEST_CASE("cnn: evaluation uses the running statistics and changes nothing") {
  CnnShape shape = small(4);
  shape.momentum = 1;  // what runs is the last batch
  const Samples samples(shape, 4);
  Rig<double> rig(shape);
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
  const Samples samples(shape, 9);
  Rig<float> narrow(shape);
  Rig<double> wide(shape);
  for (size_t p = 0; p < wide.values.size(); ++p) {
    std::copy(narrow.values[p].begin(), narrow.values[p].end(), wide.values[p].begin());
  }
  const double loss = narrow.train(samples.all());
  CHECK(loss == Approx(wide.train(samples.all())).epsilon(1e-6));
  for (size_t p = 0; p < wide.values.size(); ++p) {
    INFO(wide.model->parameters()[p].name);
    const std::vector<double> widened(narrow.gradients[p].begin(), narrow.gradients[p].end());
    CHECK(relative_difference(widened, wide.gradients[p]) < 1e-5);
  }
}

TEST_CASE("cnn: shapes, operations and memory are those of the description") {
  const auto model = make_cnn<float>({.batch = 1}, nullptr);
  size_t count = 0;
  for (const Parameter& parameter : model->parameters()) count += parameter.count();
  CHECK(count == 16 * 9 + 2 * 16 + 32 * 16 * 9 + 2 * 32 + 10 * 32 * 7 * 7 + 10);
  CHECK(model->gemm_operations() ==
        4.0 * (16 * 9) * (28 * 28) + 6.0 * (32 * 16 * 9) * (14 * 14) + 6.0 * 10 * (32 * 7 * 7));
  // A sample more costs: two images of each block's size (before and after normalisation), two
  // pooled ones with where they were pooled from, the image, the logits, and two gradients.
  const size_t first = 16 * 28 * 28, second = 32 * 14 * 14;
  const size_t sample =
      sizeof(float) * (2 * first + 2 * second + first / 4 + second / 4 + 28 * 28 + 10 + 2 * first) +
      first / 4 + second / 4;
  const auto larger = make_cnn<float>({.batch = 3}, nullptr);
  CHECK(larger->activation_bytes() - model->activation_bytes() == 2 * sample);
}

}  // namespace rondo::trainer::cnn_test
