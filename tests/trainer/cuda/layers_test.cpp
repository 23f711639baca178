// The trainer's GPU kernels, walked on the host: in double against central differences, in float
// and bfloat16 against the host's functions, in three orders of their threads.
#include "trainer/layers/host/layers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

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
    for (const size_t rows : {size_t{0}, size_t{1}, size_t{3}, size_t{300}, size_t{1100}}) {
      for (const size_t width : {size_t{1}, size_t{8}, size_t{40}, size_t{264}, size_t{776}}) {
        if (width % kN != 0 || (rows == 1100 && width != 40)) continue;
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
          const cuda::SumColumnsKernel<T, kN> kernel{rows, width, width, x.data(), nullptr};
          std::vector<cuda::Wide<T>> partial(kernel.tile().slices() * width);
          walk(cuda::SumColumnsKernel<T, kN>{rows, width, width, x.data(), partial.data()}, order);
          return add_slices<T>(kernel.tile().slices(), width, partial, 0, true, bias, order);
        });
        check_close(wide(sums), expected_sums,
                    unit<T>() + std::max(rows, size_t{300}) * unit<cuda::Wide<T>>());
        Values dy = wide(x);
        rows_kernels<double>().relu_backward(dy.size(), wide(y).data(), dy.data());
        std::vector<T> dx = x;
        walk(cuda::ReluBackwardKernel<T, kN>{x.size(), y.data(), dx.data()});
        REQUIRE(wide(dx) == dy);
      }
    }
  });
}

TEST_CASE("cuda rows: slices are added whatever their number, and those of a second sum") {
  constexpr size_t kWidth = 37;
  for (const size_t slices : {0, 1, 7, 8, 9, 32, 33, 63, 64, 65, 127, 128, 129, 300, 2049}) {
    INFO(slices << " slices");
    const Values partial = noise(2 * slices * kWidth, 1), before = noise(2 * kWidth, 2);
    Values expected = before;
    for (size_t i = 0; i < partial.size(); ++i) {
      expected[(i < slices * kWidth ? 0 : kWidth) + i % kWidth] += partial[i];
    }
    const Values got = in_every_order<double>([&](Order order) {
      Values sums = before;
      walk(cuda::AddSlicesKernel<double>{slices, kWidth, partial.data(), true, sums.data(),
                                         sums.data() + kWidth},
           order);
      return sums;
    });
    check_close(got, expected, 2100 * unit<double>());
    const std::vector<double> first(before.begin(), before.begin() + kWidth);
    REQUIRE(add_slices<double>(slices, kWidth, partial, 0, true, first, kOrders[0]) ==
            Values(got.begin(), got.begin() + kWidth));
  }
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
    for (const size_t width : {size_t{1}, size_t{8}, size_t{40}, size_t{264}, size_t{1000}}) {
      if (width % kN != 0) continue;
      const size_t rows = width == 40 ? 300 : 11;  // several slices, or one
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
        const double bound = 32 * unit<T>() + static_cast<double>(rows) * unit<cuda::Wide<T>>();
        const auto check_parameters = [&](size_t parts) {
          check_close(wide(add_slices<T>(parts, width, partial, 0, false, none, kOrders[0])),
                      dgamma, bound);
          check_close(wide(add_slices<T>(parts, width, partial, 1, false, none, kOrders[0])), dbeta,
                      bound);
        };
        check_parameters(slices);

        if constexpr (sizeof(T) == 2 && kN > 1) {
          const auto check_whole = [&]<int kPacks>() {
            using Whole = cuda::LayerNormBackwardKernel<T, kPacks>;
            if (width > Whole::kMostWidth) return;
            std::vector<cuda::Wide<T>> sums;
            const std::vector<T> whole = in_every_order<T>([&](Order order) {
              std::vector<T> gradient = branch;
              partial.assign(2 * Whole::slices(rows) * width, NAN);
              walk(Whole{rows, width, normalised.data(), factors.data(), gamma.data(), dy.data(),
                         gradient.data(), partial.data()},
                   order);
              if (sums.empty()) sums = partial;
              REQUIRE(sums == partial);
              return gradient;
            });
            REQUIRE(wide(whole) == wide(got));
            check_parameters(Whole::slices(rows));
          };
          check_whole.template operator()<1>();
          check_whole.template operator()<2>();
          check_whole.template operator()<3>();
          check_whole.template operator()<4>();
        }
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
    if (decltype(pack)::value != cuda::kPack<T>) return;
    // Classes and strides: a pack, no whole pack, rows of nothing but padding for most threads, more
    // than a block takes at a time, more than it reads at once, more than it can keep.
    const std::pair<size_t, size_t> widths[] = {{1, 8},         {1, 64},       {8, 8},
                                                {37, 40},       {264, 320},    {8191, 8200},
                                                {40003, 40064}, {60001, 60032}};
    for (const auto& [classes, stride] : widths) {
      INFO(classes << " classes, stride " << stride);
      constexpr size_t kRows = 3;
      const LogitsShape shape{kRows, classes, stride};
      const auto pad = [&, classes = classes, stride = stride](Values values, double with) {
        for (size_t i = 0; i < values.size(); ++i) {
          if (i % stride >= classes) values[i] = with;
        }
        return values;
      };
      const std::vector<T> logits = as<T>(pad(noise(kRows * stride, 1, 30), std::nan("")));
      std::vector<int32_t> targets;
      for (size_t r = 0; r < kRows; ++r) targets.push_back(static_cast<int32_t>(r * 7 % classes));
      targets.back() = static_cast<int32_t>(classes - 1);
      Values expected = wide(logits);
      const double expected_loss =
          softmax_cross_entropy_forward(shape, targets.data(), expected.data());
      for (const bool gradient : {false, true}) {
        std::vector<double> losses(kRows);
        const std::vector<T> got = in_every_order<T>([&](Order order) {
          std::vector<T> to = logits;
          walk(cuda::SoftmaxCrossEntropyKernel<T>{shape, targets.data(), gradient, to.data(),
                                                  losses.data()},
               order);
          return to;
        });
        double loss = 0;
        walk(cuda::AddRowsKernel{kRows, losses.data(), &loss});
        CHECK(loss == Approx(expected_loss).epsilon(1e-5));
        if (gradient) softmax_cross_entropy_backward(shape, targets.data(), 1.0, expected.data());
        check_close(wide(got), pad(expected, 0), 64 * unit<cuda::Wide<T>>() + unit<T>());
      }
    }
  });
  // What a row may hold besides numbers.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int32_t target = 0;
  for (const float odd : {std::nanf(""), kInfinity, -kInfinity}) {
    std::vector<float> row(12, 1);  // of 8 classes
    for (const size_t at : {size_t{1}, size_t{7}}) {
      std::vector<float> logits = row;
      logits[at] = odd;
      double loss = 0;
      walk(cuda::SoftmaxCrossEntropyKernel<float>{
          {.rows = 1, .classes = 8, .stride = 12}, &target, false, logits.data(), &loss});
      for (size_t i = 0; i < logits.size(); ++i) {
        if (i >= 8) {
          CHECK(logits[i] == 0);
        } else if (odd == -kInfinity) {
          CHECK(logits[i] == Approx(i == at ? 0 : 1.0 / 7));
        } else {
          CHECK(std::isnan(logits[i]));
        }
      }
      CHECK(std::isnan(loss) == (odd != -kInfinity));
    }
  }
}

TEST_CASE("cuda scale: every number, and none beyond the count") {
  for_types([](auto type, auto pack) {
    using T = decltype(type);
    if (decltype(pack)::value != cuda::kPack<T>) return;
    for (const size_t count : {size_t{0}, size_t{8}, size_t{2056}}) {
      std::vector<T> values = as<T>(noise(count + 8, 1));
      Values expected = wide(values);
      for (size_t i = 0; i < count; ++i) expected[i] *= 0.25;  // exact
      walk(cuda::ScaleKernel<T>{count, cuda::Wide<T>(0.25), values.data()});
      REQUIRE(wide(values) == expected);
    }
  });
}

TEST_CASE("cuda dropout drops what the host drops") {
  const uint64_t keys[] = {mix(1), mix(2)};
  for (const double probability : {0.0, 0.1, 0.5, 0.999}) {
    const Dropout dropout{.probability = probability, .keys = keys, .layer = 3};
    Values expected(2 * 1000, 1), got = expected, packs = expected;
    drop(dropout, 2, 1000, expected.data());
    walk(cuda::DropKernel<double, 1>{cuda::DropoutFactors::of(dropout), 2, 1000, got.data()});
    walk(cuda::DropKernel<double, 2>{cuda::DropoutFactors::of(dropout), 2, 1000, packs.data()});
    REQUIRE(got == expected);
    REQUIRE(packs == expected);
  }
}

TEST_CASE("cuda embedding: look-ups with positions and dropout") {
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
      drop({.probability = probability, .keys = keys, .layer = 3}, 3, kContext * kSize,
           expected.data());
      std::vector<T> y(kSymbols * kSize);
      walk(cuda::EmbeddingForwardKernel<T, kN>{
          kSymbols, kSize, kContext, x.data(), table.data(), positions.data(),
          cuda::DropoutFactors::of({.probability = probability, .keys = keys, .layer = 3}),
          y.data()});
      check_close(wide(y), expected, 2 * unit<T>());
    }
    std::vector<T> y(kSymbols * kSize);
    walk(cuda::EmbeddingForwardKernel<T, kN>{
        kSymbols, kSize, kContext, x.data(), table.data(), nullptr, {}, y.data()});
    for (size_t i = 0; i < y.size(); ++i) {
      REQUIRE(cuda::widen(y[i]) ==
              cuda::widen(table[static_cast<size_t>(x[i / kSize]) * kSize + i % kSize]));
    }
  });
}

TEST_CASE("cuda embedding: gradients of tokens whose places are in one part and in several") {
  for_types([](auto type, auto pack) {
    using T = decltype(type);
    constexpr int kN = decltype(pack)::value;
    constexpr uint32_t kPart = cuda::kPlacesOfPart;
    constexpr size_t kRows = 12;
    // How many places each token has. Runs begin and end with parts, inside of them, and at their ends.
    const std::vector<std::vector<size_t>> all = {
        {},
        {0, 1},
        {0, 0, 3, 0, 5, 1, 1, 0, 2},
        {kPart},
        {kPart - 1, 2},
        {kPart + 1, 0, kPart - 1, kPart, 1, 2 * kPart - 1, 1},
        {5, 4 * kPart, 3, 0, 7 * kPart + 1, 2, 5 * kPart - 9, 1, 1, 1},
        {21 * kPart},
    };
    for (const std::vector<size_t>& places : all) {
      // 136 is more than a block's columns of single elements.
      for (const size_t size : {size_t{8}, size_t{136}}) {
        if (size > 8 && places.size() != 7) continue;
        std::vector<int32_t> x;
        for (size_t token = 0; token < places.size(); ++token) {
          x.insert(x.end(), places[token], static_cast<int32_t>(token));
        }
        for (size_t i = x.size(); i > 1; --i) std::swap(x[i - 1], x[mix(i) % i]);
        std::vector<int32_t> order(x.size());
        std::iota(order.begin(), order.end(), 0);
        const auto token_of = [&](int32_t i) { return x[static_cast<size_t>(i)]; };
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return token_of(a) < token_of(b); });
        const std::vector<T> dy = as<T>(noise(x.size() * size, 3)),
                             before = as<T>(noise(kRows * size, 4));
        Values expected = wide(before);
        embedding_backward(x.size(), size, x.data(), wide(dy).data(), expected.data());
        std::vector<T> first;
        for (const Order walked : kOrders) {
          std::vector<cuda::Wide<T>> partial(cuda::embedding_partial(x.size(), size),
                                             std::numeric_limits<cuda::Wide<T>>::quiet_NaN());
          std::vector<T> gradient = before;
          walk(cuda::EmbeddingBackwardKernel<T, kN>{x.size(), size, x.data(), order.data(),
                                                    dy.data(), partial.data(), gradient.data()},
               walked);
          walk(cuda::AddEmbeddingPartsKernel<T>{x.size(), size, x.data(), order.data(),
                                                partial.data(), gradient.data()},
               walked);
          // Sums have up to 672 terms.
          check_close(wide(gradient), expected, sizeof(T) == 2 ? 8 * unit<T>() : 700 * unit<T>());
          if (first.empty()) first = gradient;
          REQUIRE(wide(gradient) == wide(first));
        }
      }
    }
  });
}

TEST_CASE("cuda embedding: no block adds more than a part's gradients, however frequent a token") {
  // Of 5000 places of one token: every block of the first kernel has 32, all of which it reads.
  constexpr size_t kPlaces = 5000, kSize = 4;
  std::vector<int32_t> x(kPlaces, 1), order(kPlaces);
  std::iota(order.begin(), order.end(), 0);
  const std::vector<float> dy(kPlaces * kSize, 1);
  std::vector<float> partial(cuda::embedding_partial(kPlaces, kSize)), gradient(2 * kSize);
  const cuda::EmbeddingBackwardKernel<float, 4> kernel{
      kPlaces, kSize, x.data(), order.data(), dy.data(), partial.data(), gradient.data()};
  REQUIRE(kernel.grid().x == 157);
  walk(kernel);
  CHECK(*std::max_element(partial.begin(), partial.end()) == cuda::kPlacesOfPart);
  CHECK(gradient == std::vector<float>(2 * kSize));
  walk(cuda::AddEmbeddingPartsKernel<float>{kPlaces, kSize, x.data(), order.data(), partial.data(),
                                            gradient.data()});
  CHECK(gradient == std::vector<float>{0, 0, 0, 0, 5000, 5000, 5000, 5000});
}

}  // namespace rondo::trainer::cuda_layers_test
