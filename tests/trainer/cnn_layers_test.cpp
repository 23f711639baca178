// Convolution, pooling and batch normalisation: against plain loops that follow the definition, and
// backward against central differences.
#include <cmath>
#include <limits>

#include "tests/trainer/gradient_check.hpp"
#include "tests/trainer/layer_values.hpp"
#include "trainer/layers/host/batch_norm.hpp"
#include "trainer/layers/host/convolution.hpp"
#include "trainer/layers/host/pooling.hpp"

namespace rondo::trainer::cnn_layers_test {

using namespace rondo::trainer::testing;

namespace {

template <class T>
void check_close(const std::vector<T>& a, const Values& b, double tolerance) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    INFO("element " << i << ": " << a[i] << " and " << b[i]);
    REQUIRE(std::abs(static_cast<double>(a[i]) - b[i]) <= tolerance * (1 + std::abs(b[i])));
  }
}

Values widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

// ---- convolution

/// The definition, pixel by pixel.
Values convolve(const ConvolutionShape& s, const Values& x, const Values& w) {
  Values y(s.samples * s.out_size());
  size_t i = 0;
  for (size_t n = 0; n < s.samples; ++n)
    for (size_t o = 0; o < s.out_channels; ++o)
      for (size_t out_y = 0; out_y < s.out_height(); ++out_y)
        for (size_t out_x = 0; out_x < s.out_width(); ++out_x, ++i)
          for (size_t c = 0; c < s.in_channels; ++c)
            for (size_t ky = 0; ky < s.kernel; ++ky)
              for (size_t kx = 0; kx < s.kernel; ++kx) {
                const size_t py = out_y * s.stride + ky, px = out_x * s.stride + kx;  // padded
                if (py < s.padding || py >= s.height + s.padding) continue;
                if (px < s.padding || px >= s.width + s.padding) continue;
                y[i] += w[((o * s.in_channels + c) * s.kernel + ky) * s.kernel + kx] *
                        x[((n * s.in_channels + c) * s.height + py - s.padding) * s.width + px -
                          s.padding];
              }
  return y;
}

ConvolutionShape convolution(size_t samples, size_t in_channels, size_t height, size_t width,
                             size_t out_channels, size_t kernel, size_t stride, size_t padding) {
  return {.samples = samples,
          .in_channels = in_channels,
          .height = height,
          .width = width,
          .out_channels = out_channels,
          .kernel = kernel,
          .stride = stride,
          .padding = padding};
}

const std::vector<ConvolutionShape> kConvolutions = {
    convolution(2, 1, 1, 1, 1, 1, 1, 0), convolution(2, 3, 4, 5, 2, 1, 1, 0),
    convolution(1, 2, 5, 7, 3, 3, 1, 0), convolution(2, 2, 5, 4, 3, 3, 1, 1),
    convolution(2, 2, 5, 6, 2, 3, 2, 1), convolution(1, 1, 7, 6, 2, 3, 2, 0),
    convolution(1, 2, 3, 2, 2, 5, 1, 2),  // the kernel is larger than the image
    convolution(2, 1, 5, 9, 1, 5, 3, 4),  // some offsets of the kernel never meet the image
    convolution(1, 1, 1, 1, 1, 1, 2, 1),
};

}  // namespace

TEST_CASE("convolution: forward follows the definition, backward equals central differences") {
  for (const ConvolutionShape& s : kConvolutions) {
    INFO("kernel " << s.kernel << " stride " << s.stride << " padding " << s.padding << " image "
                   << s.height << " x " << s.width);
    Values x = noise(s.samples * s.in_size(), 1), w = noise(s.out_channels * s.patch(), 2);
    Values y(s.samples * s.out_size(), 9), columns(s.columns(), 9);
    convolution_forward(s, x.data(), w.data(), columns.data(), y.data());
    check_close(y, convolve(s, x, w), 1e-14);

    const Values weights = noise(y.size(), 3);
    const auto loss = [&] { return dot(weights, convolve(s, x, w)); };
    Values dx(x.size(), 9), dw(w.size(), 9);
    convolution_backward_input(s, weights.data(), w.data(), columns.data(), dx.data());
    check_gradient(x, dx, loss);
    convolution_backward_weight(s, weights.data(), x.data(), columns.data(), false, dw.data());
    check_gradient(w, dw, loss);
    Values twice = dw;
    convolution_backward_weight(s, weights.data(), x.data(), columns.data(), true, twice.data());
    check_close(twice, doubled(dw), 1e-14);
  }
}

TEST_CASE("convolution: bias and ReLU, forward and backward; a NaN stays") {
  const ConvolutionShape s{
      .samples = 2, .in_channels = 1, .height = 3, .width = 3, .out_channels = 2, .kernel = 1};
  const Values before = noise(s.samples * s.out_size(), 4);
  const Values bias = {0.25, -0.5};
  for (const bool relu : {false, true}) {
    Values y = before;
    convolution_bias_forward(s, bias.data(), relu, y.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const double sum = before[i] + bias[i / 9 % 2];
      REQUIRE(y[i] == (relu ? std::max(0.0, sum) : sum));
    }
  }
  Values nan(before.size(), std::nan(""));
  convolution_bias_forward(s, bias.data(), true, nan.data());
  CHECK(std::isnan(nan[0]));

  Values expected(2), dbias = {7, 7};
  for (size_t i = 0; i < before.size(); ++i) expected[i / 9 % 2] += before[i];
  convolution_bias_backward(s, before.data(), false, dbias.data());
  check_close(dbias, expected, 1e-14);
  convolution_bias_backward(s, before.data(), true, dbias.data());
  check_close(dbias, {2 * expected[0], 2 * expected[1]}, 1e-14);
}

TEST_CASE("convolution: no samples") {
  const ConvolutionShape s{
      .samples = 0, .in_channels = 1, .height = 3, .width = 3, .out_channels = 1, .kernel = 3};
  Values columns(s.columns()), dw(9, 5), dbias = {5}, none;
  convolution_forward(s, none.data(), dw.data(), columns.data(), none.data());
  convolution_backward_input(s, none.data(), dw.data(), columns.data(), none.data());
  convolution_bias_forward(s, dbias.data(), true, none.data());
  convolution_backward_weight(s, none.data(), none.data(), columns.data(), true, dw.data());
  convolution_bias_backward(s, none.data(), true, dbias.data());
  CHECK(dw == Values(9, 5));
  CHECK(dbias == Values{5});
  convolution_backward_weight(s, none.data(), none.data(), columns.data(), false, dw.data());
  convolution_bias_backward(s, none.data(), false, dbias.data());
  CHECK(dw == Values(9, 0));
  CHECK(dbias == Values{0});
}

// ---- pooling

TEST_CASE("max pool: the largest of each window and where it stood; odd edges are left out") {
  for (const auto& [height, width] :
       {std::pair<size_t, size_t>{2, 2}, {4, 6}, {5, 7}, {1, 4}, {3, 35}}) {
    INFO(height << " x " << width);
    const PoolShape s{.planes = 3, .height = height, .width = width};
    Values x = noise(3 * height * width, 5), y(s.out_count(), 9);
    std::vector<uint8_t> which(s.out_count());
    max_pool_forward(s, x.data(), y.data(), which.data());
    for (size_t i = 0; i < y.size(); ++i) {
      const size_t plane = i / (s.out_height() * s.out_width());
      const size_t row = i / s.out_width() % s.out_height(), column = i % s.out_width();
      const double* window = &x[(plane * height + 2 * row) * width + 2 * column];
      const Values four = {window[0], window[1], window[width], window[width + 1]};
      REQUIRE(y[i] == *std::max_element(four.begin(), four.end()));
      REQUIRE(four[which[i]] == y[i]);
    }
    const Values weights = noise(y.size(), 6);
    const auto loss = [&] {
      std::vector<uint8_t> ignored(which.size());
      max_pool_forward(s, x.data(), y.data(), ignored.data());
      return dot(weights, y);
    };
    Values dx(x.size(), 9);
    max_pool_backward(s, weights.data(), which.data(), dx.data());
    check_gradient(x, dx, loss);
  }
}

TEST_CASE("max pool: the first of equals; a NaN anywhere in the window") {
  const PoolShape s{.planes = 1, .height = 2, .width = 2};
  Values x = {1, 1, 1, 1}, y(1);
  std::vector<uint8_t> which(1);
  max_pool_forward(s, x.data(), y.data(), which.data());
  CHECK(which[0] == 0);
  for (size_t i = 0; i < 4; ++i) {
    x = {1, std::numeric_limits<double>::infinity(), 3, 4};
    x[i] = std::nan("");
    max_pool_forward(s, x.data(), y.data(), which.data());
    CHECK(std::isnan(y[0]));
    CHECK(which[0] == i);
  }
}

TEST_CASE("average pool: value and gradient") {
  for (const size_t pixels : {size_t{1}, size_t{7}, size_t{8}, size_t{17}}) {
    Values x = noise(3 * pixels, 7), y(3), dx(x.size());
    average_pool_forward(3, pixels, x.data(), y.data());
    for (size_t p = 0; p < 3; ++p) {
      double sum = 0;
      for (size_t i = 0; i < pixels; ++i) sum += x[p * pixels + i];
      CHECK(y[p] == Approx(sum / static_cast<double>(pixels)).epsilon(1e-14));
    }
    const Values weights = noise(3, 8);
    average_pool_backward(3, pixels, weights.data(), dx.data());
    check_gradient(x, dx, [&] {
      average_pool_forward(3, pixels, x.data(), y.data());
      return dot(weights, y);
    });
  }
}

// ---- batch normalisation

namespace {

/// A layer on its own, with everything that its functions borrow.
template <class T>
struct Norm {
  explicit Norm(const BatchNormShape& s, double scale = 1, double shift = 0)
      : shape(s),
        statistics(s.channels),
        x(noise<T>(count(), 10, scale, shift)),
        weight(noise<T>(s.channels, 11)),
        bias(noise<T>(s.channels, 12)),
        mean(s.channels),
        variance(s.channels, T{1}),
        y(count()),
        dweight(s.channels, T{9}),
        dbias(s.channels, T{9}) {}

  size_t count() const { return shape.samples * shape.channels * shape.pixels; }
  void forward(bool relu = false) {
    REQUIRE(batch_norm_measure(shape, x.data(), nullptr, statistics).ok());
    batch_norm_forward<T>(shape, statistics, {.weight = weight.data(), .bias = bias.data()},
                          x.data(), relu, y.data());
  }
  /// What dy becomes.
  std::vector<T> backward(std::vector<T> dy, bool accumulate = false) {
    batch_norm_backward_parameters<T>(shape, statistics, dy.data(), x.data(), accumulate,
                                      {.weight = dweight.data(), .bias = dbias.data()});
    REQUIRE(batch_norm_backward_exchange(nullptr, statistics).ok());
    batch_norm_backward_input(shape, statistics, weight.data(), x.data(), dy.data());
    return dy;
  }
  RunningStatistics<T> running() {
    return {.mean = mean.data(), .variance = variance.data(), .batches = &batches};
  }

  BatchNormShape shape;
  BatchStatistics statistics;
  std::vector<T> x, weight, bias, mean, variance, y, dweight, dbias;
  T batches = 0;
};

/// Mean and biased variance of a channel, by the definition and in long double.
std::pair<double, double> moments(const BatchNormShape& s, const Values& x, size_t channel) {
  long double mean = 0, square = 0;
  const auto total = static_cast<long double>(s.samples * s.pixels);
  for (int pass = 0; pass < 2; ++pass)
    for (size_t n = 0; n < s.samples; ++n)
      for (size_t p = 0; p < s.pixels; ++p) {
        const long double value = x[(n * s.channels + channel) * s.pixels + p];
        if (pass == 0) mean += value / total;
        if (pass == 1) square += (value - mean) * (value - mean) / total;
      }
  return {static_cast<double>(mean), static_cast<double>(square)};
}

}  // namespace

TEST_CASE("batch norm: forward and the running statistics follow their definitions") {
  for (const size_t pixels : {size_t{1}, size_t{7}, size_t{8}, size_t{9}, size_t{49}}) {
    Norm<double> norm({.samples = 5, .channels = 3, .pixels = pixels}, 2, 3);
    norm.forward();
    batch_norm_remember(norm.statistics, 0.1, norm.running());
    const auto n = static_cast<double>(5 * pixels);
    for (size_t c = 0; c < 3; ++c) {
      const auto [mean, variance] = moments(norm.shape, norm.x, c);
      CHECK(norm.mean[c] == Approx(0.1 * mean).epsilon(1e-13));
      CHECK(norm.variance[c] == Approx(0.9 + 0.1 * variance * n / (n - 1)).epsilon(1e-13));
      for (size_t s = 0; s < 5; ++s) {
        const size_t i = (s * 3 + c) * pixels;
        const double expected =
            norm.weight[c] * (norm.x[i] - mean) / std::sqrt(variance + 1e-5) + norm.bias[c];
        REQUIRE(norm.y[i] == Approx(expected).epsilon(1e-12).margin(1e-14));
      }
    }
    CHECK(norm.batches == 1);
    const Values without = norm.y;
    norm.forward(true);
    for (size_t i = 0; i < without.size(); ++i) REQUIRE(norm.y[i] == std::max(0.0, without[i]));
  }
}

TEST_CASE("batch norm: backward equals central differences, through the statistics") {
  for (const auto& [samples, pixels] : {std::pair<size_t, size_t>{1, 9}, {3, 1}, {4, 7}, {2, 17}}) {
    Norm<double> norm({.samples = samples, .channels = 2, .pixels = pixels});
    const Values weights = noise(norm.count(), 13);
    const auto loss = [&] {
      norm.forward();
      return dot(weights, norm.y);
    };
    loss();
    const Values dx = norm.backward(weights);
    const Values dweight = norm.dweight, dbias = norm.dbias;
    check_gradient(norm.x, dx, loss, 1e-6);  // 1 / deviation makes third derivatives large
    check_gradient(norm.weight, dweight, loss);
    check_gradient(norm.bias, dbias, loss);

    loss();
    norm.backward(weights, true);
    for (size_t c = 0; c < 2; ++c) {
      CHECK(norm.dweight[c] == Approx(2 * dweight[c]).epsilon(1e-12));
      CHECK(norm.dbias[c] == Approx(2 * dbias[c]).epsilon(1e-12));
    }
  }
}

TEST_CASE("batch norm: the variance is sound where the mean is a million deviations, in float") {
  Norm<float> norm({.samples = 4, .channels = 2, .pixels = 101}, 1, 1e6);
  norm.forward();
  const Values x = widened(norm.x);
  for (size_t c = 0; c < 2; ++c) {
    const auto [mean, variance] = moments(norm.shape, x, c);
    CHECK(norm.statistics.mean[c] == Approx(mean).epsilon(1e-14));
    CHECK(norm.statistics.squares[c] / norm.statistics.count == Approx(variance).epsilon(1e-9));
  }
}

TEST_CASE("batch norm: float follows double") {
  const BatchNormShape shape{.samples = 7, .channels = 3, .pixels = 49};
  Norm<float> narrow(shape);
  Norm<double> wide(shape);
  wide.x = widened(narrow.x);
  wide.weight = widened(narrow.weight);
  wide.bias = widened(narrow.bias);
  narrow.forward();
  wide.forward();
  check_close(narrow.y, wide.y, 1e-6);
  const auto dy = noise<float>(narrow.count(), 14);
  check_close(narrow.backward(dy), wide.backward(widened(dy)), 1e-6);
  check_close(narrow.dweight, wide.dweight, 1e-6);
  check_close(narrow.dbias, wide.dbias, 1e-6);
}

TEST_CASE("batch norm: evaluation uses the running statistics") {
  Norm<double> norm({.samples = 2, .channels = 2, .pixels = 3});
  norm.mean = {0.5, -1};
  norm.variance = {4, 0.25};
  batch_norm_recall(norm.shape, norm.running(), norm.statistics);
  batch_norm_forward<double>(norm.shape, norm.statistics,
                             {.weight = norm.weight.data(), .bias = norm.bias.data()},
                             norm.x.data(), false, norm.y.data());
  for (size_t i = 0; i < norm.y.size(); ++i) {
    const size_t c = i / 3 % 2;
    const double expected =
        norm.weight[c] * (norm.x[i] - norm.mean[c]) / std::sqrt(norm.variance[c] + 1e-5) +
        norm.bias[c];
    REQUIRE(norm.y[i] == Approx(expected).epsilon(1e-13).margin(1e-15));
  }
}

TEST_CASE("batch norm: a single element has variance 0, a batch of nothing changes nothing") {
  Norm<double> one({.samples = 1, .channels = 1, .pixels = 1});
  one.forward();
  batch_norm_remember(one.statistics, 0.1, one.running());
  CHECK(one.y == one.bias);
  CHECK(one.variance[0] == Approx(0.9));
  CHECK(one.backward({5}) == Values{0});
  CHECK(one.dbias == Values{5});

  Norm<double> none({.samples = 0, .channels = 2, .pixels = 4});
  none.forward();
  batch_norm_remember(none.statistics, 0.1, none.running());
  CHECK(none.mean == Values{0, 0});
  CHECK(none.variance == Values{1, 1});
  CHECK(none.batches == 0);
  none.backward({}, true);
  CHECK(none.dweight == Values{9, 9});
  none.backward({}, false);
  CHECK(none.dweight == Values{0, 0});
  CHECK(none.dbias == Values{0, 0});
  for (const double v : none.statistics.inverse_deviation) CHECK(std::isfinite(v));
}

TEST_CASE("batch norm: a NaN spoils its channel, visibly, and no other") {
  Norm<double> norm({.samples = 2, .channels = 2, .pixels = 9});
  norm.x[0] = std::nan("");
  norm.forward(true);
  CHECK(std::isnan(norm.y[17 + 1]));  // the same channel of the other sample
  CHECK(std::isfinite(norm.y[9]));
}

}  // namespace rondo::trainer::cnn_layers_test
