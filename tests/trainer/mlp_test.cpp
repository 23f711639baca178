// The whole model against central differences, the order in which it finishes gradients, and
// accumulation.
#include "trainer/models/mlp.hpp"

#include <algorithm>

#include "tests/trainer/gradient_check.hpp"
#include "trainer/base/random.hpp"

namespace rondo::trainer::mlp_test {

using rondo::trainer::testing::check_gradient;

namespace {

/// Everything that backward says, in order: "layer name" and "parameter name".
struct Listener : BackwardListener {
  explicit Listener(const Model<double>& model) : model_(model) {}
  void layer_begins(int layer) override {
    events.push_back("layer " + model_.layers()[static_cast<size_t>(layer)]);
  }
  void gradient_ready(int parameter, size_t count) override {
    CHECK(count == model_.parameters()[static_cast<size_t>(parameter)].count());
    events.push_back(model_.parameters()[static_cast<size_t>(parameter)].name);
    order.push_back(parameter);
  }
  void gradient_skipped(int parameter) override { FAIL("skipped " << parameter); }
  const Model<double>& model_;
  std::vector<std::string> events;
  std::vector<int> order;
};

constexpr Pass kPass{.training = true, .seed = 1, .step = 0};

/// A small model with storage of its own for each parameter, and a batch.
struct Fixture {
  static constexpr size_t kBatch = 3;
  static constexpr MlpShape kShape{.layers = 2, .width = 32, .batch = kBatch};

  Fixture() : model(make_mlp<double>(kShape)) {
    for (const Parameter& parameter : model->parameters()) {
      values.emplace_back(parameter.count());
      gradients.emplace_back(parameter.count(), 77);
      initialise(parameter, static_cast<int>(values.size()), 1, values.back().data());
    }
    // Biases start at zero; here they should matter.
    for (double& bias : values[2]) bias = 0.1;
    std::vector<double*> value_pointers, gradient_pointers;
    for (auto& v : values) value_pointers.push_back(v.data());
    for (auto& g : gradients) gradient_pointers.push_back(g.data());
    model->bind(value_pointers, gradient_pointers, {});
    for (size_t i = 0; i < kBatch * MlpShape::kContext; ++i) {
      tokens.push_back(static_cast<uint8_t>(mix(i)));
    }
    for (size_t i = 0; i < kBatch; ++i) targets.push_back(static_cast<uint8_t>(mix(~i)));
  }
  Batch batch(size_t size = kBatch) const {
    return {.size = size,
            .tokens = tokens.data(),
            .images = nullptr,
            .targets = targets.data(),
            .ids = nullptr};
  }
  double forward(const Batch& samples) {
    double loss = 0;
    REQUIRE(model->forward(samples, kPass, &loss).ok());
    return loss;
  }
  void backward(const Batch& samples, double scale, bool accumulate, BackwardListener& listener) {
    REQUIRE(model->backward(samples, kPass, scale, accumulate, listener).ok());
  }

  std::unique_ptr<Model<double>> model;
  std::vector<std::vector<double>> values, gradients;
  std::vector<int32_t> tokens, targets;
};

}  // namespace

TEST_CASE("mlp: the gradient of every parameter equals central differences") {
  Fixture f;
  Listener listener(*f.model);
  f.forward(f.batch());
  f.backward(f.batch(), 0.25, false, listener);
  const auto loss = [&] { return 0.25 * f.forward(f.batch()); };
  for (size_t p = 0; p < f.values.size(); ++p) {
    INFO(f.model->parameters()[p].name);
    check_gradient(f.values[p], f.gradients[p], loss);
  }
}

TEST_CASE("mlp: shapes are those of the description") {
  const auto model = make_mlp<float>({.layers = 2, .width = 512, .batch = 1});
  size_t count = 0;
  for (const Parameter& parameter : model->parameters()) count += parameter.count();
  CHECK(count == 256 * 32 + 2 * (512 * 512 + 512) + (512 * 256 + 256));
}

TEST_CASE("mlp: gradients become final in parameter order, layer by layer") {
  Fixture f;
  Listener listener(*f.model);
  f.forward(f.batch());
  f.backward(f.batch(), 1, false, listener);
  CHECK(listener.order == std::vector<int>{0, 1, 2, 3, 4, 5, 6});
  CHECK(listener.events ==
        std::vector<std::string>{"layer output", "output.bias", "output.weight", "layer hidden2",
                                 "hidden2.bias", "hidden2.weight", "layer hidden1", "hidden1.bias",
                                 "hidden1.weight", "layer embedding", "embedding"});
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

TEST_CASE("mlp: a final gradient is neither written nor read again") {
  Fixture f;
  Listener listener(*f.model);
  f.forward(f.batch());
  f.backward(f.batch(), 1, false, listener);
  const auto expected = f.gradients;
  Spoiler spoiler(f.gradients);
  f.forward(f.batch());
  f.backward(f.batch(), 1, false, spoiler);
  CHECK(spoiler.kept == expected);
  for (const auto& gradient : f.gradients) {
    CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == -1e300; }));
  }
}

TEST_CASE("mlp: accumulated single samples are the gradient of the batch") {
  Fixture f;
  Listener listener(*f.model);
  const double loss = f.forward(f.batch());
  f.backward(f.batch(), 1, false, listener);
  const auto expected = f.gradients;
  double sum = 0;
  for (size_t i = 0; i < Fixture::kBatch; ++i) {
    const Batch one{.size = 1,
                    .tokens = f.tokens.data() + i * MlpShape::kContext,
                    .images = nullptr,
                    .targets = f.targets.data() + i,
                    .ids = nullptr};
    sum += f.forward(one);
    f.backward(one, 1, i > 0, listener);
  }
  CHECK(sum == Approx(loss).epsilon(1e-13));
  for (size_t p = 0; p < expected.size(); ++p) {
    for (size_t i = 0; i < expected[p].size(); ++i) {
      REQUIRE(f.gradients[p][i] == Approx(expected[p][i]).epsilon(1e-10).margin(1e-14));
    }
  }
}

TEST_CASE("mlp: an empty batch has no loss and a zero gradient") {
  Fixture f;
  Listener listener(*f.model);
  CHECK(f.forward(f.batch(0)) == 0);
  f.backward(f.batch(0), 1, false, listener);
  CHECK(listener.order.size() == f.values.size());
  for (const auto& gradient : f.gradients) {
    CHECK(std::all_of(gradient.begin(), gradient.end(), [](double g) { return g == 0; }));
  }
}

TEST_CASE("initialise: by seed and parameter, within the bound, the same in both types") {
  const Parameter parameter{.name = "p", .shape = {1000}, .init = {Init::kUniform, 0.5}};
  std::vector<double> a(1000), b(1000), other_seed(1000), other_index(1000);
  std::vector<float> narrow(1000);
  initialise(parameter, 3, 1, a.data());
  initialise(parameter, 3, 1, b.data());
  initialise(parameter, 3, 2, other_seed.data());
  initialise(parameter, 4, 1, other_index.data());
  initialise(parameter, 3, 1, narrow.data());
  CHECK(a == b);
  CHECK(a != other_seed);
  CHECK(a != other_index);
  double mean = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    REQUIRE(narrow[i] == static_cast<float>(a[i]));
    REQUIRE(std::abs(a[i]) <= 0.5);
    mean += a[i] / 1000;
    square += a[i] * a[i] / 1000;
  }
  CHECK(std::abs(mean) < 0.05);
  CHECK(square == Approx(0.25 / 3).epsilon(0.1));
}

TEST_CASE("initialise: normal numbers have the given deviation, constants are constant") {
  const Parameter normal{.name = "n", .shape = {100, 100}, .init = {Init::kNormal, 0.02}};
  const Parameter constant{.name = "c", .shape = {3}, .init = {Init::kConstant, 7}};
  std::vector<double> values(normal.count()), sevens(3);
  initialise(normal, 0, 1, values.data());
  initialise(constant, 0, 1, sevens.data());
  double mean = 0, square = 0;
  for (const double v : values) {
    mean += v / 10000;
    square += v * v / 10000;
  }
  CHECK(std::abs(mean) < 0.001);
  CHECK(std::sqrt(square) == Approx(0.02).epsilon(0.03));
  CHECK(sevens == std::vector<double>{7, 7, 7});
}

}  // namespace rondo::trainer::mlp_test
