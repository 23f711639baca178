// The optimizers' passes on a GPU, walked on the host.
#include "trainer/optim/cuda/flat.hpp"

#include "tests/trainer/cuda/values.hpp"
#include "trainer/optim/simd.hpp"

namespace rondo::trainer::cuda_flat_test {

using cuda::testing::as;
using cuda::testing::check_close;
using cuda::testing::noise;
using cuda::testing::unit;
using cuda::testing::Values;
using cuda::testing::walk;
using cuda::testing::wide;

TEST_CASE("cuda optimizers: SGD and AdamW as the host's; bfloat16 follows its masters; norms") {
  constexpr size_t kCount = 1000;
  const Values g = noise(kCount, 1), p = noise(kCount, 2), m = noise(kCount, 3),
               v = noise(kCount, 4);
  const simd::AdamWFactors<double> factors{.keep = 0.99,
                                           .first_weight = 0.1,
                                           .second_keep = 0.999,
                                           .second_weight = 0.001,
                                           .second_correction_root = 0.5,
                                           .epsilon = 1e-8,
                                           .step_size = 0.02};
  Values squares = v;
  for (double& square : squares) square = std::abs(square);
  const auto adamw = [&](auto type, double scale) {
    using T = decltype(type);
    using W = cuda::Wide<T>;
    Values gradients = wide(as<T>(g)), mean = m, square = squares, parameters = p;
    for (double& gradient : gradients) gradient *= scale;
    simd::flat_kernels<double>().adamw(factors, kCount, gradients.data(), mean.data(),
                                       square.data(), parameters.data());
    std::vector<T> device_gradients = as<T>(g), device_parameters(kCount);
    std::vector<W> device_mean = as<W>(m), device_square = as<W>(squares), masters = as<W>(p);
    walk(cuda::AdamWKernel<T>{
        W(scale), W(factors.keep), W(factors.first_weight), W(factors.second_keep),
        W(factors.second_weight), W(factors.second_correction_root), W(factors.epsilon),
        W(factors.step_size), kCount, device_gradients.data(), device_mean.data(),
        device_square.data(), masters.data(), device_parameters.data()});
    check_close(wide(masters), parameters, 8 * unit<W>() * 50);
    check_close(wide(device_mean), mean, 8 * unit<W>());
    check_close(wide(device_square), square, 8 * unit<W>());
    REQUIRE(wide(device_parameters) == wide(as<T>(wide(masters))));
    REQUIRE(wide(device_gradients) == Values(kCount, 0));
  };
  adamw(double{}, 1);
  adamw(float{}, 0.25);
  adamw(cuda::BFloat16Bits{}, 0.25);

  const auto sgd = [&](auto type, double scale, double decay, bool with_velocity) {
    using T = decltype(type);
    using W = cuda::Wide<T>;
    const simd::SgdFactors<double> plain{.momentum = 0.9, .weight_decay = decay, .rate = 0.1};
    Values gradients = wide(as<T>(g)), velocity = m, parameters = p;
    for (double& gradient : gradients) gradient *= scale;
    simd::flat_kernels<double>().sgd(plain, kCount, gradients.data(),
                                     with_velocity ? velocity.data() : nullptr, parameters.data());
    std::vector<T> device_gradients = as<T>(g), device_parameters(kCount);
    std::vector<W> device_velocity = as<W>(m), masters = as<W>(p);
    walk(cuda::SgdKernel<T>{W(scale), W(plain.momentum), W(decay), W(plain.rate), kCount,
                            device_gradients.data(),
                            with_velocity ? device_velocity.data() : nullptr, masters.data(),
                            device_parameters.data()});
    check_close(wide(masters), parameters, 8 * unit<W>());
    check_close(wide(device_velocity), velocity, 8 * unit<W>());
    REQUIRE(wide(device_parameters) == wide(as<T>(wide(masters))));
    REQUIRE(wide(device_gradients) == Values(kCount, 0));
  };
  for (const bool with_velocity : {false, true}) {
    for (const double decay : {0.0, 0.1}) {
      sgd(double{}, 1, decay, with_velocity);
      sgd(float{}, 0.25, decay, with_velocity);
      sgd(cuda::BFloat16Bits{}, 0.25, decay, with_velocity);
    }
  }

  Values partial(cuda::SumOfSquaresKernel<float>::kBlocks);
  std::vector<float> values = as<float>(g);
  double expected = 0, got = 0;
  for (const float value : values) expected += double{value} * double{value};
  walk(cuda::SumOfSquaresKernel<float>{kCount, values.data(), partial.data()});
  walk(cuda::AddSumsKernel{partial.size(), partial.data(), &got});
  CHECK(got == Approx(expected).epsilon(1e-14));
  values[77] = std::numeric_limits<float>::infinity();
  walk(cuda::SumOfSquaresKernel<float>{kCount, values.data(), partial.data()});
  walk(cuda::AddSumsKernel{partial.size(), partial.data(), &got});
  CHECK_FALSE(std::isfinite(got));
}

}  // namespace rondo::trainer::cuda_flat_test
