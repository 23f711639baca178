// The whole model against central differences, the order in which it finishes gradients, and
// accumulation. Checks how parameters start, too.
#include "trainer/models/mlp.hpp"

#include "tests/trainer/model_rig.hpp"

namespace rondo::trainer::mlp_test {

using namespace rondo::trainer::testing;

namespace {

/// A small model and a batch.
struct Fixture : ModelRig<double> {
  static constexpr size_t kBatch = 3;

  Fixture() : ModelRig(make_mlp<double>({.layers = 2, .width = 32, .batch = kBatch})) {
    for (size_t i = 0; i < kBatch * MlpShape::kContext; ++i) {
      tokens.push_back(static_cast<uint8_t>(mix(i)));
    }
    for (size_t i = 0; i < kBatch; ++i) targets.push_back(static_cast<uint8_t>(mix(~i)));
  }
  Batch batch(size_t size = kBatch, size_t first = 0) const {
    return {.size = size,
            .tokens = tokens.data() + first * MlpShape::kContext,
            .images = nullptr,
            .targets = targets.data() + first,
            .ids = nullptr};
  }
  std::vector<int32_t> tokens, targets;
};

}  // namespace

TEST_CASE("mlp: the gradient of every parameter equals central differences") {
  Fixture f;
  check_gradients(f, f.batch(), kTraining, 1e-7);
}

TEST_CASE("mlp: gradients become final in parameter order, layer by layer, and stay") {
  Fixture f;
  check_final_gradients(f, f.batch());
  CHECK(f.listener.order == std::vector<int>{0, 1, 2, 3, 4, 5, 6});
  CHECK(f.listener.events ==
        std::vector<std::string>{"layer output", "output.bias", "output.weight", "layer hidden2",
                                 "hidden2.bias", "hidden2.weight", "layer hidden1", "hidden1.bias",
                                 "hidden1.weight", "layer embedding", "embedding"});
}

TEST_CASE("mlp: accumulated single samples are the gradient of the batch") {
  Fixture f;
  check_parts_add_up(f, f.batch(), {f.batch(1, 0), f.batch(1, 1), f.batch(1, 2)});
}

TEST_CASE("mlp: an empty batch has no loss and a zero gradient") {
  Fixture f;
  check_empty_batch(f, f.batch(0));
}

TEST_CASE("initialise: by seed and parameter, within the bound, the same in both types") {
  const Parameter parameter{.name = "p", .shape = {1000}, .init = {Init::kUniform, 0.5}};
  const auto started = [&](int index, uint64_t seed) {
    std::vector<double> values(1000);
    initialise(parameter, index, seed, values.data());
    return values;
  };
  const std::vector<double> a = started(3, 1);
  CHECK(a == started(3, 1));
  CHECK(a != started(3, 2));
  CHECK(a != started(4, 1));
  std::vector<float> narrow(1000);
  initialise(parameter, 3, 1, narrow.data());
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
