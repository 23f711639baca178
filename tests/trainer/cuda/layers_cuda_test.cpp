// The trainer's kernels on a GPU, against the same kernels walked on the host.
#include "tests/trainer/cuda/compare.hpp"
#include "trainer/layers/cuda/attention.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/embedding.hpp"
#include "trainer/layers/cuda/gelu.hpp"
#include "trainer/layers/cuda/layer_norm.hpp"
#include "trainer/layers/cuda/rows.hpp"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer::layers_cuda_test {

using cuda::BFloat16Bits;
using cuda::Wide;
using cuda::testing::bound_of;
using cuda::testing::Buffer;
using cuda::testing::compare;
using cuda::testing::noise;

namespace {

template <class T, int kN>
void compare_rows() {
  constexpr size_t kRows = 300, kWidth = 264, kSlices = 2;
  const double bound = bound_of<T>(64);
  using W = Wide<T>;
  compare(
      "bias", bound,
      [](auto& bias, auto& y) {
        return cuda::AddBiasKernel<T, kN>{kRows, kWidth, bias.data(), true, y.data()};
      },
      noise<T>(kWidth, 1), noise<T>(kRows * kWidth, 2));
  compare(
      "sums of columns", bound,
      [](auto& x, auto& partial) {
        return cuda::SumColumnsKernel<T, kN>{kRows, kWidth, x.data(), partial.data()};
      },
      noise<T>(kRows * kWidth, 1), Buffer<W>(kSlices * kWidth));
  compare(
      "gelu", bound,
      [](auto& bias, auto& x, auto& y) {
        return cuda::GeluForwardKernel<T, kN>{kRows, kWidth, bias.data(), x.data(), y.data()};
      },
      noise<T>(kWidth, 1), noise<T>(kRows * kWidth, 2, 5), Buffer<T>(kRows * kWidth));
  compare(
      "gelu backward", bound,
      [](auto& slope, auto& dy, auto& partial) {
        return cuda::GeluBackwardKernel<T, kN>{kRows, kWidth, slope.data(), dy.data(),
                                               partial.data()};
      },
      noise<T>(kRows * kWidth, 1), noise<T>(kRows * kWidth, 2), Buffer<W>(kSlices * kWidth));
  compare(
      "layer norm", bound,
      [](auto& delta, auto& bias, auto& gamma, auto& beta, auto& x, auto& normal, auto& factors,
         auto& y) {
        return cuda::LayerNormForwardKernel<T, kN>{
            kRows,       kWidth,   delta.data(),  bias.data(),    gamma.data(),
            beta.data(), x.data(), normal.data(), factors.data(), y.data()};
      },
      noise<T>(kRows * kWidth, 1), noise<T>(kWidth, 2), noise<T>(kWidth, 3), noise<T>(kWidth, 4),
      noise<T>(kRows * kWidth, 5), Buffer<T>(kRows * kWidth), Buffer<W>(kRows),
      Buffer<T>(kRows * kWidth));
  compare(
      "layer norm's input", bound,
      [](auto& normal, auto& factors, auto& gamma, auto& dy, auto& dx) {
        return cuda::LayerNormBackwardInputKernel<T, kN>{
            kRows, kWidth, normal.data(), factors.data(), gamma.data(), dy.data(), dx.data()};
      },
      noise<T>(kRows * kWidth, 1), noise<W>(kRows, 2), noise<T>(kWidth, 3),
      noise<T>(kRows * kWidth, 4), noise<T>(kRows * kWidth, 5));
  compare(
      "layer norm's parameters", bound,
      [](auto& normal, auto& dy, auto& partial) {
        return cuda::LayerNormBackwardParametersKernel<T, kN>{kRows, kWidth, normal.data(),
                                                              dy.data(), partial.data()};
      },
      noise<T>(kRows * kWidth, 1), noise<T>(kRows * kWidth, 2), Buffer<W>(2 * kSlices * kWidth));
  Buffer<int32_t> targets(kRows);
  for (size_t i = 0; i < kRows; ++i) targets[i] = static_cast<int32_t>(mix(i) % kWidth);
  for (const bool gradient : {false, true}) {
    compare(
        "cross-entropy", bound,
        [&](auto& target, auto& logits, auto& losses) {
          return cuda::SoftmaxCrossEntropyKernel<T, kN>{
              kRows, kWidth, target.data(), gradient, W(0.5), logits.data(), losses.data()};
        },
        targets, noise<T>(kRows * kWidth, 1, 10), Buffer<double>(kRows));
  }
  compare(
      "embedding", bound,
      [](auto& x, auto& table, auto& positions, auto& keys, auto& y) {
        return cuda::EmbeddingForwardKernel<T, kN>{kRows,
                                                   kWidth,
                                                   100,
                                                   x.data(),
                                                   table.data(),
                                                   positions.data(),
                                                   cuda::DropoutFactors::of(0.3, keys.data()),
                                                   y.data()};
      },
      targets, noise<T>(kWidth * kWidth, 1), noise<T>(100 * kWidth, 2), Buffer<uint64_t>{7, 8, 9},
      Buffer<T>(kRows * kWidth));
  // Row 5 was looked up by all symbols with even numbers, row 2 by the others.
  Buffer<int32_t> symbols(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    symbols[i] = static_cast<int32_t>(i < kRows / 2 ? 2 * i : 2 * (i - kRows / 2) + 1);
  }
  compare(
      "embedding backward", bound,
      [](auto& used, auto& begins, auto& order, auto& dy, auto& dtable) {
        return cuda::EmbeddingBackwardKernel<T, kN>{
            2, kWidth, used.data(), begins.data(), order.data(), dy.data(), dtable.data()};
      },
      Buffer<int32_t>{5, 2}, Buffer<int32_t>{0, kRows / 2, kRows}, symbols,
      noise<T>(kRows * kWidth, 1), noise<T>(8 * kWidth, 2));
}

/// Kernels that have no packs.
template <class T>
void compare_elements() {
  constexpr size_t kRows = 60, kWidth = 70, kCount = kRows * kWidth;
  using W = Wide<T>;
  compare(
      "relu backward", 0,
      [](auto& y, auto& dy) {
        return cuda::ReluBackwardKernel<T>{kCount, y.data(), dy.data()};
      },
      noise<T>(kCount, 1), noise<T>(kCount, 2));
  compare(
      "slices", 0,
      [](auto& partial, auto& sums) {
        return cuda::AddSlicesKernel<T>{kRows, kWidth, partial.data(), true, sums.data()};
      },
      noise<W>(kCount, 1), noise<T>(kWidth, 2));
  Buffer<int32_t> targets(kRows);
  for (size_t i = 0; i < kRows; ++i) targets[i] = static_cast<int32_t>(mix(i) % kWidth);
  compare(
      "cross-entropy backward", 0,
      [](auto& target, auto& probabilities) {
        return cuda::SoftmaxCrossEntropyBackwardKernel<T>{kRows, kWidth, target.data(), W(0.5),
                                                          probabilities.data()};
      },
      targets, noise<T>(kCount, 1));
  compare(
      "dropout", 0,
      [](auto& keys, auto& values) {
        return cuda::DropKernel<T>{cuda::DropoutFactors::of(0.3, keys.data()), 2, kCount / 2,
                                   values.data()};
      },
      Buffer<uint64_t>{7, 8}, noise<T>(kCount, 1));
  compare(
      "SGD", 0,
      [](auto& g, auto& velocity, auto& masters, auto& parameters) {
        return cuda::SgdKernel<T>{W(0.5),          W(0.9),         W(0.1),
                                  W(0.01),         kCount,         g.data(),
                                  velocity.data(), masters.data(), parameters.data()};
      },
      noise<T>(kCount, 1), noise<W>(kCount, 2), noise<W>(kCount, 3), Buffer<T>(kCount));
}

template <class T, int kSize>
void compare_attention(double dropout) {
  constexpr size_t kSamples = 2, kContext = 70, kHeads = 2;
  const AttentionShape shape{kSamples, kContext, kHeads, kHeads * kSize};
  const size_t count = kSamples * kContext * shape.width, rows = kSamples * kHeads * kContext;
  Buffer<T> qkv = noise<T>(3 * count, 1, 2), y(count);
  Buffer<Wide<T>> sums(rows);
  const Buffer<uint64_t> keys{5, 6};
  const auto forward = [&](auto& in, auto& key, auto& sum, auto& out) {
    return cuda::AttentionForwardKernel<T, kSize>{
        shape, cuda::DropoutFactors::of(dropout, key.data()), in.data(), sum.data(), out.data()};
  };
  compare("attention", bound_of<T>(64), forward, qkv, keys, sums, y);
  Buffer<uint64_t> own_keys = keys;
  cuda::testing::walk(forward(qkv, own_keys, sums, y));
  compare(
      "attention backward", bound_of<T>(256),
      [&](auto& in, auto& key, auto& out, auto& dout, auto& sum, auto& din) {
        return cuda::AttentionBackwardKernel<T, kSize>{
            shape,       cuda::DropoutFactors::of(dropout, key.data()),
            in.data(),   out.data(),
            dout.data(), sum.data(),
            din.data()};
      },
      qkv, keys, y, noise<T>(count, 2), sums, Buffer<T>(3 * count));
}

}  // namespace

TEST_CASE("layers on a GPU equal the same kernels on the host, and themselves bit for bit") {
  compare_rows<float, 1>();
  compare_rows<float, 4>();
  compare_rows<BFloat16Bits, 1>();
  compare_rows<BFloat16Bits, 8>();
  compare_elements<float>();
  compare_elements<BFloat16Bits>();
  for (const double dropout : {0.0, 0.1}) {
    compare_attention<float, 32>(dropout);
    compare_attention<float, 64>(dropout);
    compare_attention<BFloat16Bits, 64>(dropout);
  }
  constexpr size_t kCount = 100'000;
  compare(
      "AdamW", bound_of<float>(64),
      [](auto& g, auto& mean, auto& square, auto& masters, auto& parameters) {
        return cuda::AdamWKernel<BFloat16Bits>{
            1,     0.99f,  0.1f,     0.999f,      0.001f,        0.5f,           1e-8f,
            0.02f, kCount, g.data(), mean.data(), square.data(), masters.data(), parameters.data()};
      },
      noise<BFloat16Bits>(kCount, 1), noise<float>(kCount, 2), Buffer<float>(kCount, 0.5f),
      noise<float>(kCount, 4), Buffer<BFloat16Bits>(kCount));
  compare(
      "sum of squares", 1e-12,
      [](auto& values, auto& partial) {
        return cuda::SumOfSquaresKernel<float>{kCount, values.data(), partial.data()};
      },
      noise<float>(kCount, 1), Buffer<double>(cuda::SumOfSquaresKernel<float>::kBlocks));
  compare(
      "sum of sums", 1e-12,
      [](auto& values, auto& sum) {
        return cuda::AddSumsKernel{kCount, values.data(), sum.data()};
      },
      noise<double>(kCount, 1), Buffer<double>(1));
}

}  // namespace rondo::trainer::layers_cuda_test
