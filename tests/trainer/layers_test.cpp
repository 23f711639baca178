// Every layer's backward against central differences, and its behaviour with no rows and when
// accumulating.
#include "trainer/layers/host/layers.hpp"

#include <cmath>

#include "tests/trainer/gradient_check.hpp"
#include "tests/trainer/layer_values.hpp"
#include "trainer/layers/host/layers_on_host.hpp"

namespace rondo::trainer::layers_test {

using namespace rondo::trainer::testing;

TEST_CASE("linear: y = x w^T + b, by its definition") {
  const LinearShape shape{.rows = 2, .in = 3, .out = 2};
  const Values x = {1, 2, 3, 4, 5, 6}, w = {1, 0, -1, 2, 3, 4}, b = {10, -20};
  Values y(4);
  linear_forward(shape, x.data(), w.data(), b.data(), false, y.data());
  CHECK(y == Values{8, 0, 8, 27});
  linear_forward(shape, x.data(), doubled(w).data(), b.data(), true, y.data());
  CHECK(y == Values{6, 20, 6, 74});
}

TEST_CASE("linear with and without ReLU: backward equals central differences") {
  for (const bool relu : {false, true}) {
    for (const size_t rows : {size_t{1}, size_t{5}}) {
      const LinearShape shape{.rows = rows, .in = 7, .out = 4};
      Values x = noise(rows * 7, 1), w = noise(4 * 7, 2), b = noise(4, 3);
      const Values weights = noise(rows * 4, 4);
      Values y(rows * 4);
      const auto loss = [&] {
        linear_forward(shape, x.data(), w.data(), b.data(), relu, y.data());
        return dot(weights, y);
      };
      loss();
      Values dy = weights, dx(x.size()), dw(w.size()), db(b.size());
      if (relu) relu_backward(dy.size(), y.data(), dy.data());
      linear_backward_parameters(shape, dy.data(), x.data(), false, dw.data(), db.data());
      linear_backward_input(shape, dy.data(), w.data(), dx.data());
      check_gradient(x, dx, loss);
      check_gradient(w, dw, loss);
      check_gradient(b, db, loss);

      const Values dw_once = dw, db_once = db;
      linear_backward_parameters(shape, dy.data(), x.data(), true, dw.data(), db.data());
      for (size_t i = 0; i < dw.size(); ++i) CHECK(dw[i] == Approx(2 * dw_once[i]));
      for (size_t i = 0; i < db.size(); ++i) CHECK(db[i] == Approx(2 * db_once[i]));
    }
  }
}

TEST_CASE("ReLU: zero and negative outputs stop the gradient, NaN is not hidden") {
  const Values y = {0, 3, 0};
  Values dy = {5, 6, 7};
  relu_backward(dy.size(), y.data(), dy.data());
  CHECK(dy == Values{0, 6, 0});

  const LinearShape shape{.rows = 1, .in = 1, .out = 1};
  const double nan = std::nan(""), one = 1, zero = 0;
  double out = 0;
  linear_forward(shape, &nan, &one, &zero, true, &out);
  CHECK(std::isnan(out));
}

TEST_CASE("embedding: looks up, concatenates, and adds gradients of repeated symbols") {
  constexpr size_t kSize = 3;
  Values table = noise(256 * kSize, 5);
  const std::vector<int32_t> symbols = {0, 255, 7, 7, 0, 7};
  const Values weights = noise(symbols.size() * kSize, 6);
  Values y(symbols.size() * kSize);
  const auto loss = [&] {
    embedding_forward(symbols.size(), kSize, symbols.data(), table.data(), y.data());
    return dot(weights, y);
  };
  loss();
  for (size_t i = 0; i < y.size(); ++i) {
    REQUIRE(y[i] == table[static_cast<size_t>(symbols[i / kSize]) * kSize + i % kSize]);
  }
  Values dtable(table.size(), 0);
  embedding_backward(symbols.size(), kSize, symbols.data(), weights.data(), dtable.data());
  check_gradient(table, dtable, loss);
  const Values once = dtable;
  embedding_backward(symbols.size(), kSize, symbols.data(), weights.data(), dtable.data());
  for (size_t i = 0; i < once.size(); ++i) REQUIRE(dtable[i] == Approx(2 * once[i]));
}

TEST_CASE("softmax cross-entropy: value, probabilities, gradient") {
  constexpr size_t kRows = 3, kClasses = 5;
  const std::vector<int32_t> targets = {4, 0, 2};
  const LogitsShape shape{.rows = kRows, .classes = kClasses, .stride = kClasses};
  Values logits = noise(kRows * kClasses, 7);
  const auto loss = [&] {
    Values copy = logits;
    return softmax_cross_entropy_forward(shape, targets.data(), copy.data());
  };
  Values probabilities = logits;
  const double value = softmax_cross_entropy_forward(shape, targets.data(), probabilities.data());
  double expected = 0;
  for (size_t r = 0; r < kRows; ++r) {
    double sum = 0;
    for (size_t c = 0; c < kClasses; ++c) sum += probabilities[r * kClasses + c];
    CHECK(sum == Approx(1).epsilon(1e-14));
    expected -= std::log(probabilities[r * kClasses + static_cast<size_t>(targets[r])]);
  }
  CHECK(value == Approx(expected).epsilon(1e-14));
  softmax_cross_entropy_backward(shape, targets.data(), 1.0, probabilities.data());
  check_gradient(logits, probabilities, loss);
}

TEST_CASE("softmax cross-entropy: logits far apart neither overflow nor lose the loss") {
  const std::vector<int32_t> targets = {0, 1};
  std::vector<float> logits = {1e4f, -1e4f, 1e4f, -1e4f};
  CHECK(softmax_cross_entropy_forward({2, 2, 2}, targets.data(), logits.data()) == Approx(2e4));
  CHECK(logits == std::vector<float>{1, 0, 1, 0});
}

TEST_CASE("matrix products: parts of larger matrices, transposed or not, and empty sums") {
  // In a sheet of 5 columns: a at columns 0..2, b at 1..3, c at 1..2; what is around c must stay.
  const Values a_sheet = noise(30, 11), b_sheet = noise(30, 12);
  for (const bool transposed_a : {false, true}) {
    for (const bool transposed_b : {false, true}) {
      for (const size_t k : {size_t{0}, size_t{1}, size_t{3}}) {
        Values c_sheet(30, 4);
        multiply<double>({.m = 3,
                          .n = 2,
                          .k = k,
                          .alpha = 2,
                          .a = {a_sheet.data(), 5, transposed_a},
                          .b = {b_sheet.data() + 1, 5, transposed_b},
                          .beta = 0.5,
                          .c = {c_sheet.data() + 1, 5}});
        for (size_t i = 0; i < 6; ++i) {
          for (size_t j = 0; j < 5; ++j) {
            const bool inside = i < 3 && j >= 1 && j < 3;
            double expected = inside ? 2 : 4;
            for (size_t l = 0; inside && l < k; ++l) {
              expected += 2 * a_sheet[transposed_a ? l * 5 + i : i * 5 + l] *
                          b_sheet[1 + (transposed_b ? (j - 1) * 5 + l : l * 5 + j - 1)];
            }
            REQUIRE(c_sheet[i * 5 + j] == Approx(expected).epsilon(1e-14));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "count_correct: a target counts where it is the first of the largest, and that is finite") {
  const double nan = std::nan("");
  const Values rows = {0.5, 0.5, 0.2, 0.5, 0.5, 0.2, 0.1, 0.2, 0.7,  //
                       nan, nan, nan, nan, 0.5, 0.2, 0.3, 0.4, 0.3};
  const int32_t targets[] = {0, 1, 2, 0, 1, 0};
  LayersOnHost<double> layers;
  double correct = 100;
  layers.count_correct({6, 3, 3}, targets, rows.data(), &correct);
  CHECK(correct == 102);  // the first and the third
  layers.count_correct({0, 3, 3}, targets, rows.data(), &correct);
  CHECK(correct == 102);
}

TEST_CASE("rows of logits with padding: the numbers of rows without, and the padding stays") {
  constexpr size_t kRows = 6, kIn = 3, kOut = 5, kStride = 8;
  const Values x = noise(kRows * kIn, 1), w = noise(kOut * kIn, 2), b = noise(kOut, 3);
  const int32_t targets[] = {4, 0, 2, 1, 3, 3};
  const double nan = std::nan("");
  LayersOnHost<double> layers;
  const auto pass = [&](size_t stride, Values& y) {
    const LinearShape linear{.rows = kRows, .in = kIn, .out = kOut, .stride = stride};
    const LogitsShape logits{.rows = kRows, .classes = kOut, .stride = stride};
    Values results(2 + kRows * kIn + kOut * kIn + kOut);
    double* const dx = results.data() + 2;
    double* const dw = dx + kRows * kIn;
    y.assign(kRows * stride, nan);
    layers.linear_forward(linear, x.data(), w.data(), b.data(), false, y.data());
    layers.softmax_cross_entropy_forward(logits, targets, true, y.data(), &results[0]);
    layers.count_correct(logits, targets, y.data(), &results[1]);
    layers.softmax_cross_entropy_backward(logits, targets, 0.5, y.data());
    layers.multiply_input_gradient(linear, y.data(), w.data(), dx);
    layers.multiply_weight_gradient(linear, {.first = 0, .count = kOut}, y.data(), x.data(), dw,
                                    false);
    layers.linear_backward_bias(linear, y.data(), false, dw + kOut * kIn);
    return results;
  };
  Values plain, padded;
  const Values expected = pass(kOut, plain), got = pass(kStride, padded);
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).margin(1e-14));
  for (size_t i = 0; i < padded.size(); ++i) {
    const size_t column = i % kStride;
    if (column < kOut) {
      CHECK(padded[i] == Approx(plain[i / kStride * kOut + column]).margin(1e-15));
    } else {
      CHECK(std::isnan(padded[i]));
    }
  }
}

TEST_CASE("matrix products: panels of a weight's gradient are the gradient") {
  const LinearShape shape{.rows = 4, .in = 3, .out = 7};
  const Values dy = noise(28, 13), x = noise(12, 14);
  Values whole(21), panels(21);
  multiply_weight_gradient(shape, dy.data(), x.data(), whole.data(), false);
  for (const auto& [first, count] : {WeightPanel{0, 3}, WeightPanel{3, 3}, WeightPanel{6, 1}}) {
    multiply_weight_gradient(shape, {first, count}, dy.data(), x.data(), panels.data(), false);
  }
  for (size_t i = 0; i < whole.size(); ++i) CHECK(panels[i] == Approx(whole[i]).epsilon(1e-14));
}

TEST_CASE("no rows: gradients are zero when written and untouched when accumulated") {
  const LinearShape shape{.rows = 0, .in = 3, .out = 2};
  Values w = noise(6, 8), dw(6, 5), db(2, 5), dtable(256, 5), none;
  linear_forward<double>(shape, none.data(), w.data(), db.data(), true, none.data());
  linear_backward_input<double>(shape, none.data(), w.data(), none.data());
  linear_backward_parameters<double>(shape, none.data(), none.data(), true, dw.data(), db.data());
  embedding_backward<double>(0, 1, nullptr, none.data(), dtable.data());
  CHECK(dw == Values(6, 5));
  CHECK(db == Values(2, 5));
  CHECK(dtable == Values(256, 5));
  linear_backward_parameters<double>(shape, none.data(), none.data(), false, dw.data(), db.data());
  CHECK(dw == Values(6, 0));
  CHECK(db == Values(2, 0));
  CHECK(softmax_cross_entropy_forward<double>({0, 2, 2}, nullptr, none.data()) == 0);
}

}  // namespace rondo::trainer::layers_test
