// The optimizers' passes on a GPU, walked on the host.
#include "trainer/optim/cuda/flat.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/harness/sanitized.hpp"
#include "tests/trainer/cuda/values.hpp"
#include "trainer/optim/clip.hpp"
#include "trainer/optim/cuda/compression.hpp"
#include "trainer/optim/simd.hpp"

namespace rondo::trainer::cuda_flat_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

TEST_CASE("cuda optimizers: SGD and AdamW as the host's; bfloat16 follows its masters; norms") {
  constexpr size_t kCount = 2 * FlatPart::kThreads * FlatPart::kEach + 300;
  const Values g = noise(kCount, 1), p = noise(kCount, 2), m = noise(kCount, 3),
               v = noise(kCount, 4);
  Values squares = v;
  for (double& square : squares) square = std::abs(square);
  const size_t first = 3 * DecayMap::kUnit + 5;  // as where a rank's share begins
  std::vector<uint8_t> units(ceil_div(first + kCount, DecayMap::kUnit));
  for (size_t u = 0; u < units.size(); ++u) units[u] = u % 3 == 0 || u % 5 == 0;
  const DecayMap decay{.units = units.data(), .first = first};
  /// Where parameters decay those of `decayed`, else of `plain`.
  const auto by_decay = [&](const Values& decayed, Values plain) {
    for (size_t i = 0; i < kCount; ++i) {
      if (units[(first + i) / 16] != 0) plain[i] = decayed[i];
    }
    return plain;
  };
  /// What `update` makes of g * scale and p on the host.
  const auto on_host = [&]<class T>(T, double scale, const auto& update) {
    Values gradients = wide(as<T>(g)), parameters = p;
    for (double& gradient : gradients) gradient *= scale;
    update(gradients.data(), parameters.data());
    return parameters;
  };
  /// As every update leaves them: parameters are the rounded masters, and gradients are zeros.
  const auto check_rest = [&](const auto& masters, const auto& parameters, const auto& gradients) {
    using T = typename std::decay_t<decltype(parameters)>::value_type;
    REQUIRE(wide(parameters) == wide(as<T>(wide(masters))));
    REQUIRE(wide(gradients) == Values(kCount, 0));
  };
  const auto adamw = [&]<class T>(T type, double scale) {
    using W = Wide<T>;
    simd::AdamWFactors<double> factors{.keep = 0.99,
                                       .first_weight = 0.1,
                                       .second_keep = 0.999,
                                       .second_weight = 0.001,
                                       .second_correction_root = 0.5,
                                       .epsilon = 1e-8,
                                       .step_size = 0.02};
    Values mean, square;
    const auto update = [&](double* gradients, double* parameters) {
      mean = m, square = squares;
      simd::flat_kernels<double>().adamw(factors, kCount, gradients, mean.data(), square.data(),
                                         parameters);
    };
    const Values decayed = on_host(type, scale, update);
    const double keep = std::exchange(factors.keep, 1);
    const Values expected = by_decay(decayed, on_host(type, scale, update));
    std::vector<T> gradients = as<T>(g), parameters(kCount);
    std::vector<W> device_mean = as<W>(m), device_square = as<W>(squares), masters = as<W>(p);
    const UpdateFactors<W> of_step{.coefficient = W(scale),
                                   .rate = W(NAN),
                                   .keep = W(keep),
                                   .second_correction_root = W(factors.second_correction_root),
                                   .step_size = W(factors.step_size)};
    walk_of<AdamWKernel<T>>(&of_step, decay, W(factors.first_weight), W(factors.second_keep),
                            W(factors.second_weight), W(factors.epsilon), kCount, gradients,
                            device_mean, device_square, masters, parameters);
    check_close(masters, expected, 8 * unit<W>() * 50);
    check_close(device_mean, mean, 8 * unit<W>());
    check_close(device_square, square, 8 * unit<W>());
    check_rest(masters, parameters, gradients);
  };
  adamw(double{}, 1);
  adamw(float{}, 0.25);
  adamw(BFloat16Bits{}, 0.25);
  adamw(Float16Bits{}, 0.25);

  const auto sgd = [&]<class T>(T type, double scale, double weight_decay, bool with_velocity) {
    using W = Wide<T>;
    simd::SgdFactors<double> factors{.momentum = 0.9, .weight_decay = weight_decay, .rate = 0.1};
    Values velocity;
    const auto update = [&](double* gradients, double* parameters) {
      velocity = m;
      simd::flat_kernels<double>().sgd(factors, kCount, gradients,
                                       with_velocity ? velocity.data() : nullptr, parameters);
    };
    const Values decayed = on_host(type, scale, update), decayed_velocity = velocity;
    factors.weight_decay = 0;
    const Values expected = by_decay(decayed, on_host(type, scale, update));
    velocity = by_decay(decayed_velocity, velocity);
    std::vector<T> gradients = as<T>(g), parameters(kCount);
    std::vector<W> device_velocity = as<W>(m), masters = as<W>(p);
    const UpdateFactors<W> of_step{.coefficient = W(scale), .rate = W(factors.rate)};
    walk_of<SgdKernel<T>>(&of_step, decay, W(factors.momentum), W(weight_decay), kCount, gradients,
                          with_velocity ? device_velocity.data() : nullptr, masters, parameters);
    check_close(masters, expected, 8 * unit<W>());
    check_close(device_velocity, velocity, 8 * unit<W>());
    check_rest(masters, parameters, gradients);
  };
  for (const bool with_velocity : {false, true}) {
    for (const double weight_decay : {0.0, 0.1}) {
      sgd(double{}, 1, weight_decay, with_velocity);
      sgd(float{}, 0.25, weight_decay, with_velocity);
      sgd(BFloat16Bits{}, 0.25, weight_decay, with_velocity);
    }
  }
}

TEMPLATE_TEST_CASE("cuda optimizers: the sum of squares of values that begin and end anywhere", "",
                   float, double, BFloat16Bits) {
  using Squares = SumOfSquaresKernel<TestType>;
  constexpr size_t kMost = 3 * Squares::kThreads * Squares::kN;
  std::vector<TestType> values = as<TestType>(noise(kMost + 16, 1));
  const auto sum = [&](size_t begin, size_t count) {
    Values partial(Squares::kBlocks, NAN);
    double got = 0;
    walk(Squares{count, values.data() + begin, partial.data()});
    walk(AddRowsKernel{partial.size(), partial.data(), &got});
    return got;
  };
  const auto check = [&](size_t begin, size_t count, double relative) {
    INFO(count << " from " << begin);
    double expected = 0;
    for (size_t i = begin; i < begin + count; ++i) {
      const auto value = static_cast<double>(widen(values[i]));
      expected += value * value;
    }
    CHECK(sum(begin, count) == Approx(expected).epsilon(relative));
  };
  for (const size_t begin : {0, 1, 7, 15}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{9}, size_t{1000}, kMost}) {
      check(begin, count, 1e-14);
    }
  }
  if (sizeof(TestType) == 4 && !rondo::testing::kSanitized) {
    const size_t at_a_time = size_t{Squares::kBlocks} * Squares::kThreads * Squares::kN;
    values = as<TestType>(noise(at_a_time + 4321, 2));
    check(0, values.size(), 1e-12);
  }
  for (const size_t which : {7, 77, 1006}) {
    const TestType was = std::exchange(values[which], as<TestType>({INFINITY})[0]);
    CHECK_FALSE(std::isfinite(sum(7, 1000)));
    values[which] = was;
  }
}

TEST_CASE("cuda optimizers: a step's factors are derived from what is in memory") {
  const AdamWOptions options{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.5};
  StepState<double> state{.values = {.rate = 0.1, .factor = 0.5}, .steps = 6};
  walk(BeginUpdateKernel<double>{options, nullptr, 0, false, &state});
  CHECK(state.steps == 7);
  const auto expected = adamw_factors<double>(options, 7, 0.1);
  CHECK(state.factors.coefficient == 0.5);
  CHECK(state.factors.rate == 0.1);
  CHECK(state.factors.keep == expected.keep);
  CHECK(state.factors.second_correction_root == expected.second_correction_root);
  CHECK(state.factors.step_size == expected.step_size);

  double squares = 64;  // of gradients twice as large as their average
  for (const double most : {1.0, 5.0}) {
    walk(BeginUpdateKernel<double>{options, &squares, most, false, &state});
    CHECK(state.result.norm == 4);
    CHECK(state.factors.coefficient == 0.5 * clip_coefficient(4, most));
  }
  CHECK(state.steps == 9);
  squares = std::numeric_limits<double>::infinity();
  walk(BeginUpdateKernel<double>{options, &squares, 1, false, &state});
  CHECK(state.factors.coefficient == 0);  // as the host's
  CHECK(state.result.made == 1);
}

TEST_CASE(
    "cuda optimizers: the loss scale follows the host's rules, and skipped steps change nothing") {
  LossScaler host;
  StepState<float> state{.values = {.rate = 0.1, .factor = 0.5}, .scaler = host.state()};
  uint64_t made = 0;
  const auto step = [&](double squares) {
    const double scale = static_cast<double>(host.scale());
    const bool makes = host.update(std::isfinite(squares));
    made += makes ? 1 : 0;
    walk(BeginUpdateKernel<float>{{}, &squares, 1e9, true, &state});
    REQUIRE(state.scaler == host.state());
    REQUIRE(state.steps == made);
    REQUIRE(state.factors.skips != makes);
    REQUIRE(state.result.made == (makes ? 1 : 0));
    REQUIRE(state.result.norm == (makes ? 0.5 * std::sqrt(squares) / scale : 0));
    if (makes) REQUIRE(state.factors.coefficient == static_cast<float>(0.5 / scale));
  };
  step(4);
  step(INFINITY);
  step(NAN);
  for (int i = 0; i < 2001; ++i) step(1);
  CHECK(state.scaler.scale == 65536.0f / 2);
  for (int i = 0; i < 200; ++i) step(INFINITY);
  CHECK(state.scaler.scale > 0);

  std::vector<float> gradients = {NAN, 1}, mean = {1, 2}, square = {3, 4}, masters = {5, 6};
  std::vector<Float16Bits> halves = as<Float16Bits>({INFINITY, 1}), parameters(2);
  const uint8_t decays = 1;
  walk_of<AdamWKernel<Float16Bits>>(&state.factors, DecayMap{&decays}, 0.1f, 0.9f, 0.1f, 1e-8f,
                                    size_t{2}, halves, mean, square, masters, parameters);
  CHECK(mean == std::vector<float>{1, 2});
  CHECK(square == std::vector<float>{3, 4});
  CHECK(masters == std::vector<float>{5, 6});
  CHECK(wide(parameters) == Values{0, 0});
  CHECK(wide(halves) == Values{0, 0});
  walk_of<SgdKernel<float>>(&state.factors, DecayMap{&decays}, 0.9f, 0.1f, size_t{2}, gradients,
                            mean, masters, masters);
  CHECK(mean == std::vector<float>{1, 2});
  CHECK(masters == std::vector<float>{5, 6});
  CHECK(gradients == std::vector<float>{0, 0});
}

namespace {

/// There and back is the scaled value as that type rounds it, and nothing beyond the end.
template <DataType kWire>
void check_compression(float (*widened)(uint16_t), uint16_t (*narrowed)(float)) {
  constexpr size_t kCount = 1000;
  std::vector<float> gradients = as<float>(noise(kCount, 5)), got(kCount + 1, 7);
  gradients[3] = std::numeric_limits<float>::infinity();
  gradients[4] = std::numeric_limits<float>::quiet_NaN();
  gradients[5] = 1e-7f;
  gradients[6] = -1e30f;
  std::vector<uint16_t> wire(kCount + 1, 7);
  walk(CompressKernel<kWire>{0.375f, kCount, gradients.data(), wire.data()});
  walk(DecompressKernel<kWire>{kCount, wire.data(), got.data()});
  CHECK(wire[kCount] == 7);
  CHECK(got[kCount] == 7);
  CHECK(std::isnan(got[4]));
  for (size_t i = 0; i < kCount; ++i) {
    if (i != 4) REQUIRE(got[i] == widened(narrowed(0.375f * gradients[i])));
  }
}

}  // namespace

TEST_CASE("cuda optimizers: gradients in the two bytes in which they travel") {
  check_compression<DataType::kBFloat16>(kernels::float_from_bfloat16,
                                         kernels::bfloat16_from_float);
  check_compression<DataType::kFloat16>(kernels::float_from_half, kernels::half_from_float);
}

}  // namespace rondo::trainer::cuda_flat_test
