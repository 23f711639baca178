// The trainer's GPU kernels, walked on the host: in double against central differences, in float
// and bfloat16 against the host's functions, in three orders of their threads.
#include "trainer/layers/host/layers.hpp"

#include <cmath>
#include <limits>

#include "tests/trainer/cuda/values.hpp"
#include "tests/trainer/gradient_check.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/dropout.hpp"
#include "trainer/layers/cuda/embedding.hpp"
#include "trainer/layers/cuda/gelu.hpp"
#include "trainer/layers/cuda/layer_norm.hpp"
#include "trainer/layers/cuda/rows.hpp"
#include "trainer/layers/host/dropout.hpp"
#include "trainer/layers/host/gelu.hpp"
#include "trainer/layers/host/layer_norm.hpp"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer::cuda_layers_test {

using cuda::testing::as;
using cuda::testing::check_close;
using cuda::testing::dot;
using cuda::testing::for_types;
using cuda::testing::in_every_order;
using cuda::testing::kOrders;
using cuda::testing::noise;
using cuda::testing::Order;
using cuda::testing::unit;
using cuda::testing::Values;
using cuda::testing::walk;
using cuda::testing::wide;
using trainer::testing::check_gradient;

namespace {

/// sums[width] of columns by a kernel that leaves partial sums of `times` such, one after another.
template <class T>
std::vector<T> add_slices(size_t slices, size_t width, const std::vector<cuda::Wide<T>>& partial,
                          size_t which, bool accumulate, std::vector<T> sums, Order order) {
  walk(cuda::AddSlicesKernel<T>{.slices = slices,
                                .width = width,
                                .partial = partial.data() + which * slices * width,
                                .accumulate = accumulate,
                                .sums = sums.data()},
       order);
  return sums;
}

}  // namespace

TEST_CASE("cuda rows: a bias with ReLU, its backward, and sums of columns equal the host's") {
  for_types([](auto type, auto pack) {
    using T = decltype(type);
    constexpr int kN = decltype(pack)::value;
    for (const size_t rows : {size_t{0}, size_t{1}, size_t{3}, size_t{300}}) {
      for (const size_t width : {size_t{1}, size_t{8}, size_t{40}, size_t{264}}) {
        if (width % kN != 0) continue;
        const std::vector<T> x = as<T>(noise(rows * width, 1)), bias = as<T>(noise(width, 2));
        Values expected = wide(x), expected_sums = wide(bias);
        rows_kernels<double>().add_bias(rows, width, wide(bias).data(), true, expected.data());
        rows_kernels<double>().add_columns(rows, width, wide(x).data(), expected_sums.data());
        const std::vector<T> y = in_every_order<T>([&](Order order) {
          std::vector<T> to = x;
          walk(cuda::AddBiasKernel<T, kN>{rows, width, bias.data(), true, to.data()}, order);
          return to;
        });
        check_close(wide(y), expected, 2 * unit<T>());
        const std::vector<T> sums = in_every_order<T>([&](Order order) {
          const cuda::SumColumnsKernel<T, kN> kernel{rows, width, x.data(), nullptr};
          std::vector<cuda::Wide<T>> partial(kernel.tile().slices() * width);
          walk(cuda::SumColumnsKernel<T, kN>{rows, width, x.data(), partial.data()}, order);
          return add_slices<T>(kernel.tile().slices(), width, partial, 0, true, bias, order);
        });
        check_close(wide(sums), expected_sums, unit<T>() + 300 * unit<cuda::Wide<T>>());
        Values dy = wide(x);
        rows_kernels<double>().relu_backward(dy.size(), wide(y).data(), dy.data());
        std::vector<T> dx = x;
        walk(cuda::ReluBackwardKernel<T>{x.size(), y.data(), dx.data()});
        REQUIRE(wide(dx) == dy);
      }
    }
  });
}

TEST_CASE("cuda gelu: forward and derivative as the host's, everywhere; the bias's gradient") {
  for_types([](auto type, auto pack) {
    using T = decltype(type);
    constexpr int kN = decltype(pack)::value;
    constexpr size_t kWidth = 264;
    for (const size_t rows : {size_t{1}, size_t{257}}) {
      const std::vector<T> in = as<T>(noise(rows * kWidth, 1, 20)), bias = as<T>(noise(kWidth, 2));
      Values slope = wide(in), y(in.size());
      gelu_kernels<double>().forward(rows, kWidth, wide(bias).data(), slope.data(), y.data());
      std::vector<T> x = in, out(in.size());
      walk(cuda::GeluForwardKernel<T, kN>{rows, kWidth, bias.data(), x.data(), out.data()});
      check_close(wide(out), y, 16 * unit<T>());
      check_close(wide(x), slope, 16 * unit<cuda::Wide<T>>() * 20 + 2 * unit<T>());

      const std::vector<T> dy = as<T>(noise(in.size(), 3));
      Values dx = wide(dy), dbias(kWidth);
      gelu_kernels<double>().backward(rows, kWidth, wide(x).data(), dx.data(), dbias.data());
      const cuda::GeluBackwardKernel<T, kN> shape{rows, kWidth, nullptr, nullptr, nullptr};
      const std::vector<T> sums = in_every_order<T>([&](Order order) {
        std::vector<T> to = dy;
        std::vector<cuda::Wide<T>> partial(shape.tile().slices() * kWidth);
        walk(cuda::GeluBackwardKernel<T, kN>{rows, kWidth, x.data(), to.data(), partial.data()},
             order);
        check_close(wide(to), dx, unit<T>());
        return add_slices<T>(shape.tile().slices(), kWidth, partial, 0, false,
                             std::vector<T>(kWidth), order);
      });
      const auto terms = static_cast<double>(rows);  // each of which is rounded
      check_close(wide(sums), dbias, terms * unit<cuda::Wide<T>>() + std::sqrt(terms) * unit<T>());
    }
  });
  const std::vector<float> bias(8);
  std::vector<float> x = {std::nanf(""), -1e4f, 1e4f, -87.5f, 0, -0.0f, 1e30f, -1e30f}, y(8);
  walk(cuda::GeluForwardKernel<float, 4>{1, 8, bias.data(), x.data(), y.data()});
  CHECK(std::isnan(y[0]));
  CHECK(std::isnan(x[0]));
  CHECK(std::vector<float>(y.begin() + 1, y.end()) ==
        std::vector<float>{0, 1e4f, 0, 0, 0, 1e30f, 0});
}

TEST_CASE("cuda layer norm: forward as the host's; every gradient equals central differences") {
  for_types([](auto type, auto pack) {
    using T = decltype(type);
    constexpr int kN = decltype(pack)::value;
    for (const size_t width : {size_t{1}, size_t{8}, size_t{40}, size_t{264}}) {
      if (width % kN != 0) continue;
      const size_t rows = 11;
      for (const bool adds : {false, true}) {
        const std::vector<T> x = as<T>(noise(rows * width, 1)), delta = as<T>(noise(x.size(), 2)),
                             bias = as<T>(noise(width, 3)), gamma = as<T>(noise(width, 4)),
                             beta = as<T>(noise(width, 5));
        Values stream = wide(x), normal(x.size()), reciprocal(rows), y(x.size());
        layer_norm_kernels<double>().forward({.rows = rows,
                                              .width = width,
                                              .delta = adds ? wide(delta).data() : nullptr,
                                              .bias = adds ? wide(bias).data() : nullptr,
                                              .gamma = wide(gamma).data(),
                                              .beta = wide(beta).data(),
                                              .x = stream.data(),
                                              .normal = normal.data(),
                                              .reciprocal = reciprocal.data(),
                                              .y = y.data()});
        std::vector<T> to = x, normalised(x.size()), out(x.size());
        std::vector<cuda::Wide<T>> factors(rows);
        walk(cuda::LayerNormForwardKernel<T, kN>{
            rows, width, adds ? delta.data() : nullptr, adds ? bias.data() : nullptr, gamma.data(),
            beta.data(), to.data(), normalised.data(), factors.data(), out.data()});
        check_close(wide(to), stream, 2 * unit<T>());
        check_close(wide(normalised), normal, 16 * unit<T>());
        check_close(wide(factors), reciprocal, 16 * unit<T>());
        check_close(wide(out), y, 32 * unit<T>());

        const std::vector<T> dy = as<T>(noise(x.size(), 6)), branch = as<T>(noise(x.size(), 7));
        Values dx = wide(branch), dgamma(width), dbeta(width);
        layer_norm_kernels<double>().backward({.rows = rows,
                                               .width = width,
                                               .normal = wide(normalised).data(),
                                               .reciprocal = wide(factors).data(),
                                               .gamma = wide(gamma).data(),
                                               .dy = wide(dy).data(),
                                               .dgamma = dgamma.data(),
                                               .dbeta = dbeta.data(),
                                               .dx = dx.data()});
        const std::vector<T> got = in_every_order<T>([&](Order order) {
          std::vector<T> gradient = branch;
          walk(cuda::LayerNormBackwardInputKernel<T, kN>{rows, width, normalised.data(),
                                                         factors.data(), gamma.data(), dy.data(),
                                                         gradient.data()},
               order);
          return gradient;
        });
        check_close(wide(got), dx, 32 * unit<T>());
        const cuda::LayerNormBackwardParametersKernel<T, kN> shape{rows, width, nullptr, nullptr,
                                                                   nullptr};
        const size_t slices = shape.tile().slices();
        std::vector<cuda::Wide<T>> partial(2 * slices * width);
        walk(cuda::LayerNormBackwardParametersKernel<T, kN>{rows, width, normalised.data(),
                                                            dy.data(), partial.data()});
        const std::vector<T> none(width);
        check_close(wide(add_slices<T>(slices, width, partial, 0, false, none, kOrders[0])), dgamma,
                    32 * unit<T>());
        check_close(wide(add_slices<T>(slices, width, partial, 1, false, none, kOrders[0])), dbeta,
                    32 * unit<T>());
      }
    }
  });

  constexpr size_t kRows = 3, kWidth = 40;
  Values x = noise(kRows * kWidth, 1), gamma = noise(kWidth, 4), beta = noise(kWidth, 5);
  const Values weights = noise(x.size(), 8);
  Values normal(x.size()), reciprocal(kRows), y(x.size());
  const auto loss = [&] {
    Values stream = x;
    walk(cuda::LayerNormForwardKernel<double, 2>{kRows, kWidth, nullptr, nullptr, gamma.data(),
                                                 beta.data(), stream.data(), normal.data(),
                                                 reciprocal.data(), y.data()});
    return dot(weights, y);
  };
  loss();
  Values dx(x.size()), partial(2 * kWidth), dgamma(kWidth), dbeta(kWidth);
  walk(cuda::LayerNormBackwardInputKernel<double, 2>{
      kRows, kWidth, normal.data(), reciprocal.data(), gamma.data(), weights.data(), dx.data()});
  walk(cuda::LayerNormBackwardParametersKernel<double, 2>{kRows, kWidth, normal.data(),
                                                          weights.data(), partial.data()});
  dgamma = add_slices<double>(1, kWidth, partial, 0, false, dgamma, kOrders[0]);
  dbeta = add_slices<double>(1, kWidth, partial, 1, false, dbeta, kOrders[0]);
  check_gradient(x, dx, loss);
  check_gradient(gamma, dgamma, loss);
  check_gradient(beta, dbeta, loss);
}

TEST_CASE("cuda cross-entropy: losses, probabilities and gradients as the host's") {
  for_types([](auto type, auto pack) {
    using T = decltype(type);
    constexpr int kN = decltype(pack)::value;
    for (const size_t classes : {size_t{1}, size_t{8}, size_t{264}, size_t{8192}}) {
      if (classes % kN != 0) continue;
      constexpr size_t kRows = 3;
      const std::vector<T> logits = as<T>(noise(kRows * classes, 1, 30));
      std::vector<int32_t> targets;
      for (size_t r = 0; r < kRows; ++r) targets.push_back(static_cast<int32_t>(r * 7 % classes));
      Values probabilities = wide(logits);
      const double expected =
          softmax_cross_entropy_forward(kRows, classes, targets.data(), probabilities.data());
      std::vector<double> losses(kRows);
      const std::vector<T> got = in_every_order<T>([&](Order order) {
        std::vector<T> to = logits;
        walk(cuda::SoftmaxCrossEntropyKernel<T, kN>{kRows, classes, targets.data(), false, 1,
                                                    to.data(), losses.data()},
             order);
        return to;
      });
      double loss = 0;
      walk(cuda::AddSumsKernel{kRows, losses.data(), &loss});
      CHECK(loss == Approx(expected).epsilon(1e-5));
      check_close(wide(got), probabilities, 64 * unit<cuda::Wide<T>>() + unit<T>());

      softmax_cross_entropy_backward(kRows, classes, targets.data(), 0.25, probabilities.data());
      std::vector<T> at_once = logits, later = got;
      walk(cuda::SoftmaxCrossEntropyKernel<T, kN>{kRows, classes, targets.data(), true,
                                                  cuda::Wide<T>(0.25), at_once.data(),
                                                  losses.data()});
      check_close(wide(at_once), probabilities, 64 * unit<cuda::Wide<T>>() + unit<T>());
      walk(cuda::SoftmaxCrossEntropyBackwardKernel<T>{kRows, classes, targets.data(),
                                                      cuda::Wide<T>(0.25), later.data()});
      check_close(wide(later), probabilities, 64 * unit<cuda::Wide<T>>() + 2 * unit<T>());
    }
  });
  // What a row may hold besides numbers.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int32_t target = 0;
  for (const float odd : {std::nanf(""), kInfinity, -kInfinity}) {
    std::vector<float> row(8, 1);
    for (const size_t at : {size_t{1}, size_t{7}}) {
      std::vector<float> logits = row;
      logits[at] = odd;
      double loss = 0;
      walk(
          cuda::SoftmaxCrossEntropyKernel<float, 1>{1, 8, &target, false, 1, logits.data(), &loss});
      for (size_t i = 0; i < logits.size(); ++i) {
        if (odd == -kInfinity) {
          CHECK(logits[i] == Approx(i == at ? 0 : 1.0 / 7));
        } else {
          CHECK(std::isnan(logits[i]));
        }
      }
      CHECK(std::isnan(loss) == (odd != -kInfinity));
    }
  }
}

TEST_CASE("cuda dropout drops what the host drops") {
  const uint64_t keys[] = {mix(1), mix(2)};
  for (const double probability : {0.0, 0.1, 0.5, 0.999}) {
    Values expected(2 * 1000, 1), got = expected;
    drop({.probability = probability, .keys = keys}, 2, 1000, expected.data());
    walk(
        cuda::DropKernel<double>{cuda::DropoutFactors::of(probability, keys), 2, 1000, got.data()});
    REQUIRE(got == expected);
  }
}

TEST_CASE("cuda embedding: look-ups with positions and dropout, and gradients row by row") {
  for_types([](auto type, auto pack) {
    using T = decltype(type);
    constexpr int kN = decltype(pack)::value;
    constexpr size_t kSymbols = 21, kContext = 7, kSize = 40, kRows = 5;
    std::vector<int32_t> x;
    for (size_t i = 0; i < kSymbols; ++i) {
      x.push_back(static_cast<int32_t>(mix(i) % kRows) / 2 * 2);  // some rows are never used
    }
    const std::vector<T> table = as<T>(noise(kRows * kSize, 1)),
                         positions = as<T>(noise(kContext * kSize, 2));
    const uint64_t keys[] = {1, 2, 3};
    for (const double probability : {0.0, 0.3}) {
      Values expected(kSymbols * kSize);
      embedding_forward(kSymbols, kSize, x.data(), wide(table).data(), expected.data());
      rows_kernels<double>().add_bias(3, kContext * kSize, wide(positions).data(), false,
                                      expected.data());
      drop({.probability = probability, .keys = keys}, 3, kContext * kSize, expected.data());
      std::vector<T> y(kSymbols * kSize);
      walk(cuda::EmbeddingForwardKernel<T, kN>{
          kSymbols, kSize, kContext, x.data(), table.data(), positions.data(),
          cuda::DropoutFactors::of(probability, keys), y.data()});
      check_close(wide(y), expected, 2 * unit<T>());
    }
    std::vector<T> y(kSymbols * kSize);
    walk(cuda::EmbeddingForwardKernel<T, kN>{
        kSymbols, kSize, kContext, x.data(), table.data(), nullptr, {}, y.data()});
    for (size_t i = 0; i < y.size(); ++i) {
      REQUIRE(cuda::widen(y[i]) ==
              cuda::widen(table[static_cast<size_t>(x[i / kSize]) * kSize + i % kSize]));
    }

    std::vector<int32_t> used, begins, order;
    for (int32_t row = 0; row < int32_t{kRows}; ++row) {
      const size_t before = order.size();
      for (size_t i = 0; i < kSymbols; ++i) {
        if (x[i] == row) order.push_back(static_cast<int32_t>(i));
      }
      if (order.size() == before) continue;
      used.push_back(row);
      begins.push_back(static_cast<int32_t>(before));
    }
    begins.push_back(static_cast<int32_t>(order.size()));
    const std::vector<T> dy = as<T>(noise(kSymbols * kSize, 3));
    Values expected = wide(table);
    embedding_backward(kSymbols, kSize, x.data(), wide(dy).data(), expected.data());
    std::vector<T> gradient = table;
    walk(cuda::EmbeddingBackwardKernel<T, kN>{used.size(), kSize, used.data(), begins.data(),
                                              order.data(), dy.data(), gradient.data()});
    check_close(wide(gradient), expected, 8 * unit<T>());
  });
}

}  // namespace rondo::trainer::cuda_layers_test
