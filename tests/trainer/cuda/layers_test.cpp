// The trainer's GPU kernels, walked on the host in three orders of their threads, against the
// host's functions in double, whose gradients their own tests compare with central differences.
#include "trainer/layers/host/layers.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "tests/trainer/cuda/values.hpp"
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

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

/// Adds the slices of sum number `which`, of those whose slices are in `partial` one after another.
template <class T>
std::vector<T> add_slices(size_t slices, size_t width, const std::vector<Wide<T>>& partial,
                          size_t which = 0, Order order = Order::kForwards) {
  std::vector<T> sums(width);
  walk_of<AddSlicesKernel<T>>(order, slices, width, partial.data() + which * slices * width, false,
                              sums);
  return sums;
}

}  // namespace

TEST_CASE("cuda rows: a bias with ReLU, its backward, and sums of columns equal the host's") {
  for_types([]<class T, int kN>(T, std::integral_constant<int, kN>) {
    for (const size_t rows : {size_t{0}, size_t{1}, size_t{3}, size_t{300}, size_t{1100}}) {
      for (const size_t width : {size_t{1}, size_t{8}, size_t{40}, size_t{264}, size_t{776}}) {
        if (width % kN != 0 || (rows == 1100 && width != 40)) continue;
        const std::vector<T> x = as<T>(noise(rows * width, 1)), bias = as<T>(noise(width, 2));
        Values expected = wide(x), expected_sums = wide(bias);
        rows_kernels<double>().add_bias(rows, width, wide(bias).data(), true, expected.data());
        rows_kernels<double>().add_columns(rows, width, wide(x).data(), expected_sums.data());
        const std::vector<T> y = in_every_order<T>([&](Order order) {
          std::vector<T> to = x;
          walk_of<AddBiasKernel<T, kN>>(order, rows, width, bias, true, to);
          return to;
        });
        check_close(y, expected, 2 * unit<T>());
        const std::vector<T> sums = in_every_order<T>([&](Order order) {
          const size_t slices = ColumnTile<T, kN>{rows, width}.slices();
          std::vector<Wide<T>> partial(slices * width);
          std::vector<T> to = bias;
          walk_of<SumColumnsKernel<T, kN>>(order, rows, width, width, x, partial);
          walk_of<AddSlicesKernel<T>>(order, slices, width, partial, true, to);
          return to;
        });
        check_close(sums, expected_sums, unit<T>() + std::max(rows, size_t{300}) * unit<Wide<T>>());
        Values dy = wide(x);
        rows_kernels<double>().relu_backward(dy.size(), wide(y).data(), dy.data());
        std::vector<T> dx = x;
        walk_of<ReluBackwardKernel<T, kN>>(x.size(), y, dx);
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
      walk_of<AddSlicesKernel<double>>(order, slices, kWidth, partial, true, sums,
                                       sums.data() + kWidth);
      return sums;
    });
    check_close(got, expected, 2100 * unit<double>());
    Values first(before.begin(), before.begin() + kWidth);
    walk_of<AddSlicesKernel<double>>(slices, kWidth, partial, true, first);
    REQUIRE(first == Values(got.begin(), got.begin() + kWidth));
  }
}

TEST_CASE("cuda gelu: forward and derivative as the host's, everywhere; the bias's gradient") {
  for_types([]<class T, int kN>(T, std::integral_constant<int, kN>) {
    constexpr size_t kWidth = 264;
    for (const size_t rows : {size_t{1}, size_t{257}}) {
      const std::vector<T> in = as<T>(noise(rows * kWidth, 1, 20)), bias = as<T>(noise(kWidth, 2));
      Values slope = wide(in), y(in.size());
      gelu_kernels<double>().forward(rows, kWidth, wide(bias).data(), slope.data(), y.data());
      std::vector<T> x = in, out(in.size());
      walk_of<GeluForwardKernel<T, kN>>(rows, kWidth, bias, x, out);
      check_close(out, y, 16 * unit<T>());
      check_close(x, slope, 16 * unit<Wide<T>>() * 20 + 2 * unit<T>());

      const std::vector<T> dy = as<T>(noise(in.size(), 3));
      Values dx = wide(dy), dbias(kWidth);
      gelu_kernels<double>().backward(rows, kWidth, wide(x).data(), dx.data(), dbias.data());
      const size_t slices = ColumnTile<T, kN>{rows, kWidth}.slices();
      const std::vector<T> sums = in_every_order<T>([&](Order order) {
        std::vector<T> to = dy;
        std::vector<Wide<T>> partial(slices * kWidth);
        walk_of<GeluBackwardKernel<T, kN>>(order, rows, kWidth, x, to, partial);
        check_close(to, dx, unit<T>());
        return add_slices<T>(slices, kWidth, partial, 0, order);
      });
      const auto terms = static_cast<double>(rows);  // each of which is rounded
      check_close(sums, dbias, terms * unit<Wide<T>>() + std::sqrt(terms) * unit<T>());
    }
  });
  const std::vector<float> bias(8);
  std::vector<float> x = {std::nanf(""), -1e4f, 1e4f, -87.5f, 0, -0.0f, 1e30f, -1e30f}, y(8);
  walk(GeluForwardKernel<float, 4>{1, 8, bias.data(), x.data(), y.data()});
  CHECK(std::isnan(y[0]));
  CHECK(std::isnan(x[0]));
  CHECK(std::vector<float>(y.begin() + 1, y.end()) ==
        std::vector<float>{0, 1e4f, 0, 0, 0, 1e30f, 0});
}

TEST_CASE("cuda layer norm: forward and every gradient as the host's") {
  for_types([]<class T, int kN>(T, std::integral_constant<int, kN>) {
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
        std::vector<Wide<T>> factors(rows);
        walk_of<LayerNormForwardKernel<T, kN>>(rows, width, adds ? delta.data() : nullptr,
                                               adds ? bias.data() : nullptr, gamma, beta, to,
                                               normalised, factors, out);
        check_close(to, stream, 2 * unit<T>());
        check_close(normalised, normal, 16 * unit<T>());
        check_close(factors, reciprocal, 16 * unit<T>());
        check_close(out, y, 32 * unit<T>());

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
          walk_of<LayerNormBackwardInputKernel<T, kN>>(order, rows, width, normalised, factors,
                                                       gamma, dy, gradient);
          return gradient;
        });
        check_close(got, dx, 32 * unit<T>());
        const size_t slices = ColumnTile<T, kN>{rows, width}.slices();
        std::vector<Wide<T>> partial(2 * slices * width);
        walk_of<LayerNormBackwardParametersKernel<T, kN>>(rows, width, normalised, dy, partial);
        const double bound = 32 * unit<T>() + static_cast<double>(rows) * unit<Wide<T>>();
        const auto check_parameters = [&](size_t parts) {
          check_close(add_slices<T>(parts, width, partial, 0), dgamma, bound);
          check_close(add_slices<T>(parts, width, partial, 1), dbeta, bound);
        };
        check_parameters(slices);

        if constexpr (sizeof(T) == 2 && kN > 1) {
          const auto check_whole = [&]<int kPacks>() {
            using Whole = LayerNormBackwardKernel<T, kPacks>;
            if (width > Whole::kMostWidth) return;
            std::vector<Wide<T>> sums;
            const std::vector<T> whole = in_every_order<T>([&](Order order) {
              std::vector<T> gradient = branch;
              partial.assign(2 * Whole::slices(rows) * width, NAN);
              walk_of<Whole>(order, rows, width, normalised, factors, gamma, dy, gradient, partial);
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
}

TEST_CASE("cuda cross-entropy: losses, probabilities and gradients as the host's") {
  for_each_type([]<class T>(T) {
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
          walk_of<SoftmaxCrossEntropyKernel<T>>(order, shape, targets, gradient, to, losses);
          return to;
        });
        double loss = 0;
        walk(AddRowsKernel{kRows, losses.data(), &loss});
        CHECK(loss == Approx(expected_loss).epsilon(1e-5));
        if (gradient) softmax_cross_entropy_backward(shape, targets.data(), 1.0, expected.data());
        check_close(got, pad(expected, 0), 64 * unit<Wide<T>>() + unit<T>());
      }
    }
  });
  // What a row may hold besides numbers.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int32_t target = 0;
  for (const float odd : {std::nanf(""), kInfinity, -kInfinity}) {
    for (const size_t at : {size_t{1}, size_t{7}}) {
      std::vector<float> logits(12, 1);  // of 8 classes
      logits[at] = odd;
      double loss = 0;
      walk(SoftmaxCrossEntropyKernel<float>{
          {.rows = 1, .classes = 8, .stride = 12}, &target, false, logits.data(), &loss});
      CHECK(std::vector<float>(logits.begin() + 8, logits.end()) == std::vector<float>(4, 0));
      for (size_t i = 0; i < 8; ++i) {
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

TEST_CASE("cuda scale: every number, and none beyond the count") {
  for_each_type([]<class T>(T) {
    for (const size_t count : {size_t{0}, size_t{8}, size_t{2056}}) {
      std::vector<T> values = as<T>(noise(count + 8, 1));
      Values expected = wide(values);
      for (size_t i = 0; i < count; ++i) expected[i] *= 0.25;
      walk(ScaleKernel<T>{count, Wide<T>(0.25), values.data()});
      REQUIRE(wide(values) == wide(as<T>(expected)));
    }
  });
}

TEST_CASE("cuda dropout drops what the host drops") {
  const uint64_t keys[] = {mix(1), mix(2)};
  for (const double probability : {0.0, 0.1, 0.5, 0.999}) {
    const Dropout dropout{.probability = probability, .keys = keys, .layer = 3};
    Values expected(2 * 1000, 1), got = expected, packs = expected;
    drop(dropout, 2, 1000, expected.data());
    walk(DropKernel<double, 1>{DropoutFactors::of(dropout), 2, 1000, got.data()});
    walk(DropKernel<double, 2>{DropoutFactors::of(dropout), 2, 1000, packs.data()});
    REQUIRE(got == expected);
    REQUIRE(packs == expected);
  }
}

TEST_CASE("cuda embedding: look-ups with positions and dropout") {
  for_types([]<class T, int kN>(T, std::integral_constant<int, kN>) {
    constexpr size_t kSymbols = 21, kContext = 7, kSize = 40, kRows = 5;
    std::vector<int32_t> x;
    for (size_t i = 0; i < kSymbols; ++i) {
      x.push_back(static_cast<int32_t>(mix(i) % kRows) / 2 * 2);  // some rows are never used
    }
    const std::vector<T> table = as<T>(noise(kRows * kSize, 1)),
                         positions = as<T>(noise(kContext * kSize, 2));
    const uint64_t keys[] = {1, 2, 3};
    for (const double probability : {0.0, 0.3}) {
      const Dropout dropout{.probability = probability, .keys = keys, .layer = 3};
      Values expected(kSymbols * kSize);
      embedding_forward(kSymbols, kSize, x.data(), wide(table).data(), expected.data());
      rows_kernels<double>().add_bias(3, kContext * kSize, wide(positions).data(), false,
                                      expected.data());
      drop(dropout, 3, kContext * kSize, expected.data());
      std::vector<T> y(kSymbols * kSize);
      walk_of<EmbeddingForwardKernel<T, kN>>(kSymbols, kSize, kContext, x, table, positions,
                                             DropoutFactors::of(dropout), y);
      check_close(y, expected, 2 * unit<T>());
    }
    std::vector<T> y(kSymbols * kSize);
    walk(EmbeddingForwardKernel<T, kN>{
        kSymbols, kSize, kContext, x.data(), table.data(), nullptr, {}, y.data()});
    for (size_t i = 0; i < y.size(); ++i) {
      REQUIRE(widen(y[i]) == widen(table[static_cast<size_t>(x[i / kSize]) * kSize + i % kSize]));
    }
  });
}

TEST_CASE("cuda embedding: gradients of tokens whose places are in one part and in several") {
  for_types([]<class T, int kN>(T, std::integral_constant<int, kN>) {
    constexpr uint32_t kPart = kPlacesOfPart;
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
        const std::vector<T> got = in_every_order<T>([&](Order walked) {
          std::vector<Wide<T>> partial(embedding_partial(x.size(), size), NAN);
          std::vector<T> gradient = before;
          walk_of<EmbeddingBackwardKernel<T, kN>>(walked, x.size(), size, x, order, dy, partial,
                                                  gradient);
          walk_of<AddEmbeddingPartsKernel<T>>(walked, x.size(), size, x, order, partial, gradient);
          return gradient;
        });
        // Sums have up to 672 terms.
        check_close(got, expected, sizeof(T) == 2 ? 8 * unit<T>() : 700 * unit<T>());
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
  std::vector<float> partial(embedding_partial(kPlaces, kSize)), gradient(2 * kSize);
  const EmbeddingBackwardKernel<float, 4> kernel{
      kPlaces, kSize, x.data(), order.data(), dy.data(), partial.data(), gradient.data()};
  REQUIRE(kernel.grid().x == 157);
  walk(kernel);
  CHECK(*std::max_element(partial.begin(), partial.end()) == kPlacesOfPart);
  CHECK(gradient == std::vector<float>(2 * kSize));
  walk_of<AddEmbeddingPartsKernel<float>>(kPlaces, kSize, x, order, partial, gradient);
  CHECK(gradient == std::vector<float>{0, 0, 0, 0, 5000, 5000, 5000, 5000});
}

}  // namespace rondo::trainer::cuda_layers_test
