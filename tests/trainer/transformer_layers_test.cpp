// The layers of a transformer: backward against central differences, the vector kernels against
// plain code in double at sizes around a vector's, and what they do to NaN.
#include <cmath>
#include <limits>

#include "tests/trainer/gradient_check.hpp"
#include "tests/trainer/layer_values.hpp"
#include "trainer/layers/host/attention.hpp"
#include "trainer/layers/host/causal_product.hpp"
#include "trainer/layers/host/dropout.hpp"
#include "trainer/layers/host/gelu.hpp"
#include "trainer/layers/host/layer_norm.hpp"
#include "trainer/layers/host/rows.hpp"
#include "trainer/layers/host/softmax.hpp"
#include "trainer/models/model.hpp"

namespace rondo::trainer::transformer_layers_test {

using namespace rondo::trainer::testing;

namespace {

double exact_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

// Around the widths of all vectors, 2 to 16 numbers, and of four of them.
const std::vector<size_t> kSizes = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100};

}  // namespace

TEMPLATE_TEST_CASE("gelu: within its bound of the exact function, in float and double, everywhere",
                   "", float, double) {
  using T = TestType;
  // From where it vanishes to where it is x, in steps that hit no vector boundary twice.
  const double bound = 8 * static_cast<double>(std::numeric_limits<T>::epsilon());
  std::vector<T> x, y, bias;
  for (double at = -30; at <= 30; at += 0.00137) x.push_back(static_cast<T>(at));
  const std::vector<T> in = x;
  y.resize(x.size());
  bias.resize(x.size());
  gelu_kernels<T>().forward(1, x.size(), bias.data(), x.data(), y.data());
  for (size_t i = 0; i < in.size(); ++i) {
    const double at = static_cast<double>(in[i]);
    INFO("at " << at);
    REQUIRE(std::abs(static_cast<double>(y[i]) - exact_gelu(at)) <= bound * (1 + std::abs(at)));
    const double u = 0.7978845608028654 * (at + 0.044715 * at * at * at);
    const double du = 0.7978845608028654 * (1 + 3 * 0.044715 * at * at);
    const double cosh = std::cosh(std::min(std::abs(u), 700.0));
    const double slope = 0.5 * (1 + std::tanh(u)) + 0.5 * at * du / (cosh * cosh);
    REQUIRE(std::abs(static_cast<double>(x[i]) - slope) <= bound * (1 + std::abs(at)));
  }
}

TEST_CASE("gelu: backward equals central differences; the bias is added and its gradient summed") {
  for (const size_t width : kSizes) {
    constexpr size_t kRows = 3;
    Values x = noise(kRows * width, 1, 3), bias = noise(width, 2);
    const Values weights = noise(kRows * width, 3);
    Values slope, y(x.size());
    const auto loss = [&] {
      slope = x;
      gelu_kernels<double>().forward(kRows, width, bias.data(), slope.data(), y.data());
      return dot(weights, y);
    };
    loss();
    for (size_t i = 0; i < y.size(); ++i) {
      REQUIRE(y[i] == Approx(exact_gelu(x[i] + bias[i % width])).epsilon(1e-12));
    }
    Values dx = weights, dbias(width, 0);
    gelu_kernels<double>().backward(kRows, width, slope.data(), dx.data(), dbias.data());
    check_gradient(x, dx, loss);
    check_gradient(bias, dbias, loss);
  }
}

TEST_CASE("gelu: NaN stays, and large arguments are 0 and themselves") {
  std::vector<float> x = {std::nanf(""), -1e4f, 1e4f, -87.5f, 0, -0.0f};
  std::vector<float> y(x.size()), bias(x.size());
  gelu_kernels<float>().forward(1, x.size(), bias.data(), x.data(), y.data());
  CHECK(std::isnan(y[0]));
  CHECK(std::isnan(x[0]));
  CHECK(std::vector<float>(y.begin() + 1, y.end()) == std::vector<float>{0, 1e4f, 0, 0, 0});
  CHECK(std::vector<float>(x.begin() + 1, x.end()) == std::vector<float>{0, 1, 0, 0.5f, 0.5f});
}

namespace {

/// A layer norm with everything that it reads and writes.
struct Norm {
  static constexpr size_t kRows = 3;
  explicit Norm(size_t width_)
      : width(width_),
        delta(noise(kRows * width, 2)),
        bias(noise(width, 3)),
        gamma(noise(width, 4)),
        beta(noise(width, 5)),
        x(noise(kRows * width, 1)) {}

  void forward(bool adds, bool with_bias) {
    stream = x;
    normal.resize(x.size());
    y.resize(x.size());
    reciprocal.resize(kRows);
    layer_norm_kernels<double>().forward({.rows = kRows,
                                          .width = width,
                                          .delta = adds ? delta.data() : nullptr,
                                          .bias = with_bias ? bias.data() : nullptr,
                                          .gamma = gamma.data(),
                                          .beta = beta.data(),
                                          .x = stream.data(),
                                          .normal = normal.data(),
                                          .reciprocal = reciprocal.data(),
                                          .y = y.data()});
  }
  size_t width;
  Values delta, bias, gamma, beta, x;
  Values stream, normal, reciprocal, y;
};

}  // namespace

TEST_CASE("layer norm: rows have mean beta and spread gamma, after the additions") {
  for (const size_t width : kSizes) {
    Norm norm(width);
    norm.forward(true, true);
    for (size_t r = 0; r < Norm::kRows; ++r) {
      double mean = 0, variance = 0;
      const auto at = [&](size_t c) {
        const size_t i = r * width + c;
        return norm.x[i] + norm.delta[i] + norm.bias[c];
      };
      for (size_t c = 0; c < width; ++c) mean += at(c) / static_cast<double>(width);
      for (size_t c = 0; c < width; ++c) {
        variance += (at(c) - mean) * (at(c) - mean) / static_cast<double>(width);
      }
      for (size_t c = 0; c < width; ++c) {
        const double normal = (at(c) - mean) / std::sqrt(variance + 1e-5);
        INFO("width " << width << ", row " << r << ", column " << c);
        REQUIRE(norm.stream[r * width + c] == Approx(at(c)).epsilon(1e-14));
        REQUIRE(norm.y[r * width + c] ==
                Approx(normal * norm.gamma[c] + norm.beta[c]).epsilon(1e-9).margin(1e-10));
      }
    }
  }
}

TEST_CASE("layer norm: backward equals central differences, and adds to what is there") {
  for (const size_t width : kSizes) {
    for (const int additions : {0, 1, 2}) {
      Norm norm(width);
      const Values weights = noise(norm.x.size(), 6), through = noise(norm.x.size(), 7);
      // The stream itself goes on: its gradient there is what dx starts from.
      const auto loss = [&] {
        norm.forward(additions > 0, additions > 1);
        return dot(weights, norm.y) + dot(through, norm.stream);
      };
      loss();
      Values dx = through, dgamma(width, 10), dbeta(width, 20);
      layer_norm_kernels<double>().backward({.rows = Norm::kRows,
                                             .width = width,
                                             .normal = norm.normal.data(),
                                             .reciprocal = norm.reciprocal.data(),
                                             .gamma = norm.gamma.data(),
                                             .dy = weights.data(),
                                             .dgamma = dgamma.data(),
                                             .dbeta = dbeta.data(),
                                             .dx = dx.data()});
      for (double& v : dgamma) v -= 10;
      for (double& v : dbeta) v -= 20;
      INFO("width " << width << ", additions " << additions);
      check_gradient(norm.x, dx, loss, 1e-5);  // a row of two numbers is nearly a step function
      check_gradient(norm.gamma, dgamma, loss);
      check_gradient(norm.beta, dbeta, loss);
      if (additions > 0) check_gradient(norm.delta, dx, loss, 1e-5);
    }
  }
}

TEMPLATE_TEST_CASE(
    "softmax: sums to one and equals its definition at every size, in float and double", "", float,
    double) {
  using T = TestType;
  const double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (const size_t count :
       {size_t{1}, size_t{3}, size_t{8}, size_t{17}, size_t{1024}, size_t{1025}, size_t{5001}}) {
    const auto in = noise<T>(count, 9, 8);
    auto row = in;
    const SoftmaxSum sum = softmax_kernels<T>().forward(count, row.data());
    double largest = static_cast<double>(in[0]), exact = 0;
    for (const T v : in) largest = std::max(largest, static_cast<double>(v));
    for (const T v : in) exact += std::exp(static_cast<double>(v) - largest);
    CHECK(sum.largest == largest);
    CHECK(sum.sum == Approx(exact).epsilon(16 * epsilon));
    for (size_t i = 0; i < count; ++i) {
      const double probability = std::exp(static_cast<double>(in[i]) - largest) / exact;
      REQUIRE(static_cast<double>(row[i]) == Approx(probability).epsilon(32 * epsilon));
    }
  }
}

TEST_CASE("softmax: a NaN anywhere makes the row NaN; minus infinity is a zero") {
  for (size_t at = 0; at < 19; ++at) {
    std::vector<float> row(19, 1);
    row[at] = std::nanf("");
    softmax_kernels<float>().forward(row.size(), row.data());
    for (const float v : row) REQUIRE(std::isnan(v));
  }
  std::vector<float> row = {-std::numeric_limits<float>::infinity(), 0, -200};
  softmax_kernels<float>().forward(row.size(), row.data());
  CHECK(row == std::vector<float>{0, 1, 0});
}

TEST_CASE("causal softmax: a row sees what its number says, and zeros are exact behind it") {
  for (const size_t width : {size_t{1}, size_t{5}, size_t{8}, size_t{13}, size_t{32}}) {
    for (const size_t first : {size_t{0}, size_t{3}}) {
      if (first >= width) continue;
      const CausalBlock block{.rows = width - first, .first = first, .width = width};
      auto in = noise<float>(block.rows * width, 11, 3);
      for (size_t r = 0; r < block.rows; ++r) {
        for (size_t c = first + r + 1; c < width; ++c) in[r * width + c] = std::nanf("");
      }
      auto out = in;
      softmax_kernels<float>().causal_forward(block, out.data());
      for (size_t r = 0; r < block.rows; ++r) {
        const size_t seen = first + r + 1;
        std::vector<float> row(in.begin() + static_cast<long>(r * width),
                               in.begin() + static_cast<long>(r * width + seen));
        softmax_kernels<float>().forward(seen, row.data());
        for (size_t c = 0; c < width; ++c) {
          REQUIRE(out[r * width + c] == (c < seen ? Approx(row[c]).epsilon(1e-6) : Approx(0)));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("causal products: what a query sees equals the whole product, at every size", "",
                   float, double) {
  using T = TestType;
  const double bound = 40 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (const Causal causal : {Causal::kResult, Causal::kTerms, Causal::kReturn}) {
    for (const size_t queries : {size_t{1}, size_t{4}, size_t{7}, size_t{37}}) {
      for (const size_t size : {size_t{1}, size_t{3}, size_t{8}, size_t{32}, size_t{43}}) {
        const size_t keys = queries;
        const size_t m = causal == Causal::kReturn ? keys : queries;
        const size_t n = causal == Causal::kResult ? keys : size;
        const size_t k = causal == Causal::kResult  ? size
                         : causal == Causal::kTerms ? keys
                                                    : queries;
        auto a = noise<T>(m * k, 51);
        const auto b = noise<T>(k * (n + 2), 52);
        const auto sees = [](size_t query, size_t key) { return key <= query; };
        for (size_t i = 0; i < m; ++i) {  // unseen probabilities are zeros
          for (size_t l = 0; l < k; ++l) {
            const bool zeroed = (causal == Causal::kTerms && !sees(i, l)) ||
                                (causal == Causal::kReturn && !sees(l, i));
            if (zeroed) a[i + l * m] = 0;
          }
        }
        for (const bool accumulate : {false, true}) {
          std::vector<T> c(m * n, T{3});
          causal_products_kernels<T>().multiply({.causal = causal,
                                                 .m = m,
                                                 .n = n,
                                                 .k = k,
                                                 .alpha = T{2},
                                                 .a = a.data(),
                                                 .a_row = 1,
                                                 .a_column = m,
                                                 .b = b.data(),
                                                 .b_row = n + 2,
                                                 .accumulate = accumulate,
                                                 .c = c.data(),
                                                 .c_row = n});
          for (size_t i = 0; i < m; ++i) {
            for (size_t j = 0; j < n; ++j) {
              if (causal == Causal::kResult && !sees(i, j)) continue;
              double sum = accumulate ? 3 : 0;
              for (size_t l = 0; l < k; ++l) {
                sum += 2 * double(a[i + l * m]) * double(b[l * (n + 2) + j]);
              }
              INFO(m << " x " << n << " x " << k << " at " << i << ", " << j);
              REQUIRE(std::abs(double(c[i * n + j]) - sum) <= bound);
            }
          }
        }
      }
    }
  }
  for (const size_t rows : kSizes) {
    for (const size_t columns : {size_t{1}, size_t{4}, size_t{10}}) {
      const auto from = noise<T>(rows * (columns + 1), 53);
      std::vector<T> to(rows * columns);
      causal_products_kernels<T>().transpose(rows, columns, from.data(), columns + 1, to.data());
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < columns; ++c) {
          REQUIRE(to[c * rows + r] == from[r * (columns + 1) + c]);
        }
      }
    }
  }
}

namespace {

/// Attention with operands and gradients, and the loss dot(weights, y).
struct Attention {
  Attention(const AttentionShape& shape_, double dropped) : shape(shape_) {
    const size_t tokens = shape.samples * shape.context;
    qkv = noise(tokens * 3 * shape.width, 21, 2);
    weights = noise(tokens * shape.width, 22);
    probabilities.resize(shape.samples * shape.heads * probabilities_per_head(shape.context));
    scratch.resize(attention_scratch(shape));
    y.resize(tokens * shape.width);
    for (size_t s = 0; s < shape.samples; ++s) keys.push_back(mix(s));
    if (dropped > 0) dropout = {.probability = dropped, .keys = keys.data()};
  }
  double forward() {
    attention_forward<double>({.shape = shape,
                               .dropout = dropout,
                               .qkv = qkv.data(),
                               .probabilities = probabilities.data(),
                               .scratch = scratch.data(),
                               .y = y.data()});
    return dot(weights, y);
  }
  Values backward() {
    Values dqkv(qkv.size(), 1e300);
    attention_backward<double>({.shape = shape,
                                .dropout = dropout,
                                .qkv = qkv.data(),
                                .probabilities = probabilities.data(),
                                .dy = weights.data(),
                                .scratch = scratch.data(),
                                .dqkv = dqkv.data()});
    return dqkv;
  }
  AttentionShape shape;
  Dropout dropout;
  Values qkv, weights, probabilities, scratch, y;
  std::vector<uint64_t> keys;
};

}  // namespace

TEST_CASE("attention: backward equals central differences, with and without dropout") {
  for (const size_t context : {size_t{1}, size_t{2}, size_t{5}, size_t{9}}) {
    for (const double dropped : {0.0, 0.4}) {
      Attention attention({.samples = 2, .context = context, .heads = 2, .width = 6}, dropped);
      attention.forward();
      const Values gradient = attention.backward();
      INFO("context " << context << ", dropout " << dropped);
      check_gradient(attention.qkv, gradient, [&] { return attention.forward(); });
    }
  }
}

TEST_CASE("attention: blocks of queries change nothing: against the definition, context 150") {
  const AttentionShape shape{.samples = 1, .context = 150, .heads = 2, .width = 8};
  Attention attention(shape, 0);
  attention.forward();
  const auto at = [&](size_t t, size_t which, size_t c) {
    return attention.qkv[(t * 3 + which) * shape.width + c];
  };
  for (size_t h = 0; h < shape.heads; ++h) {
    const size_t first = h * shape.head_size();
    for (size_t t = 0; t < shape.context; ++t) {
      Values scores;
      double sum = 0;
      for (size_t k = 0; k <= t; ++k) {
        double score = 0;
        for (size_t c = first; c < first + 4; ++c) score += at(t, 0, c) * at(k, 1, c);
        scores.push_back(std::exp(score / 2));
        sum += scores.back();
      }
      for (size_t c = first; c < first + 4; ++c) {
        double expected = 0;
        for (size_t k = 0; k <= t; ++k) expected += scores[k] / sum * at(k, 2, c);
        REQUIRE(attention.y[t * shape.width + c] == Approx(expected).epsilon(1e-11));
      }
    }
  }
  // The gradient along a few directions that reach across all blocks.
  const Values gradient = attention.backward();
  const Values start = attention.qkv;
  for (const uint64_t key : {31, 32, 33}) {
    const Values direction = noise(start.size(), key);
    const auto loss_at = [&](double step) {
      for (size_t i = 0; i < start.size(); ++i) attention.qkv[i] = start[i] + step * direction[i];
      return attention.forward();
    };
    const double expected = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
    CHECK(dot(direction, gradient) == Approx(expected).epsilon(1e-6));
  }
  CHECK(probabilities_per_head(150) == 64 * 64 + 64 * 128 + 22 * 150);
}

TEST_CASE("dropout: by key and element, with the given probability; its mean is 1") {
  constexpr size_t kCount = 100000;
  const uint64_t pass = pass_key(1, 2);
  const uint64_t key = layer_key(sample_key(pass, 3), 4);
  Values all(kCount, 1), part(50, 1);
  drop(0.25, key, 0, kCount, all.data());
  drop(0.25, key, 1000, part.size(), part.data());
  for (size_t i = 0; i < part.size(); ++i) REQUIRE(part[i] == all[1000 + i]);
  size_t zeros = 0;
  for (const double v : all) {
    REQUIRE((v == 0 || v == 1 / 0.75));
    zeros += v == 0;
  }
  CHECK(std::abs(static_cast<double>(zeros) / kCount - 0.25) < 0.01);
  CHECK(key != layer_key(sample_key(pass_key(2, 2), 3), 4));
  CHECK(key != layer_key(sample_key(pass_key(1, 3), 3), 4));
  CHECK(key != layer_key(sample_key(pass, 4), 4));
  CHECK(key != layer_key(sample_key(pass, 3), 5));
  double nan = std::nan("");
  drop(0.999, key, 0, 1, &nan);
  CHECK(std::isnan(nan));
}

TEST_CASE("rows: bias, sums of columns, scale and ReLU equal plain code at every size") {
  for (const size_t width : kSizes) {
    for (const size_t rows : {size_t{0}, size_t{1}, size_t{4}, size_t{7}}) {
      const Values x = noise(rows * width, 41), bias = noise(width, 42);
      Values plain = x, relu = x, sums(width, 1), scaled = x, masked(rows * width, 3);
      rows_kernels<double>().add_bias(rows, width, bias.data(), false, plain.data());
      rows_kernels<double>().add_bias(rows, width, bias.data(), true, relu.data());
      rows_kernels<double>().add_columns(rows, width, x.data(), sums.data());
      rows_kernels<double>().scale(scaled.size(), 3, scaled.data());
      rows_kernels<double>().relu_backward(masked.size(), x.data(), masked.data());
      for (size_t c = 0; c < width; ++c) {
        double sum = 1;
        for (size_t r = 0; r < rows; ++r) {
          const size_t i = r * width + c;
          REQUIRE(plain[i] == x[i] + bias[c]);
          REQUIRE(relu[i] == std::max(0.0, x[i] + bias[c]));
          REQUIRE(scaled[i] == 3 * x[i]);
          REQUIRE(masked[i] == (x[i] > 0 ? 3 : 0));
          sum += x[i];
        }
        REQUIRE(sums[c] == Approx(sum).epsilon(1e-13).margin(1e-14));
      }
    }
  }
}

}  // namespace rondo::trainer::transformer_layers_test
