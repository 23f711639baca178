// The trainer's kernels on a GPU, against the same kernels walked on the host.
#include <algorithm>

#include "tests/trainer/cuda/compare.hpp"
#include "trainer/layers/cuda/attention.hpp"
#include "trainer/layers/cuda/attention_tensor_backward.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/embedding.hpp"
#include "trainer/layers/cuda/gelu.hpp"
#include "trainer/layers/cuda/layer_norm.hpp"
#include "trainer/layers/cuda/rows.hpp"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer::layers_cuda_test {

using cuda::BFloat16Bits;
using cuda::Float16Bits;
using cuda::Wide;
using cuda::testing::bound_of;
using cuda::testing::Buffer;
using cuda::testing::compare;
using cuda::testing::noise;

namespace {

/// For cuda::DecayMap.
Buffer<uint8_t> decay_units(size_t count) {
  Buffer<uint8_t> units(cuda::ceil_div(count, cuda::DecayMap::kUnit));
  for (size_t u = 0; u < units.size(); ++u) units[u] = u % 3 == 0;
  return units;
}

template <class T, int kPacks>
void compare_layer_norm_backward(size_t width) {
  constexpr size_t kRows = 300;
  using Whole = cuda::LayerNormBackwardKernel<T, kPacks>;
  using W = Wide<T>;
  compare(
      "layer norm backward, whole", bound_of<T>(64),
      [width](auto& normal, auto& factors, auto& gamma, auto& dy, auto& dx, auto& partial) {
        return Whole{kRows,        width,     normal.data(), factors.data(),
                     gamma.data(), dy.data(), dx.data(),     partial.data()};
      },
      noise<T>(kRows * width, 1), noise<W>(kRows, 2), noise<T>(width, 3),
      noise<T>(kRows * width, 4), noise<T>(kRows * width, 5),
      Buffer<W>(2 * Whole::slices(kRows) * width));
}

template <class T, int kN>
void compare_rows() {
  constexpr size_t kRows = 300, kWidth = 264,
                   kSlices = cuda::ColumnTile<T, kN>{kRows, kWidth}.slices();
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
        return cuda::SumColumnsKernel<T, kN>{kRows, kWidth, kWidth, x.data(), partial.data()};
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
  if constexpr (sizeof(T) == 2 && kN > 1) {
    compare_layer_norm_backward<T, 1>(256);
    compare_layer_norm_backward<T, 2>(kWidth);
    compare_layer_norm_backward<T, 3>(768);
    compare_layer_norm_backward<T, 4>(1000);
  }
  Buffer<int32_t> targets(kRows);
  for (size_t i = 0; i < kRows; ++i) targets[i] = static_cast<int32_t>(mix(i) % kWidth);
  compare(
      "embedding", bound,
      [](auto& x, auto& table, auto& positions, auto& keys, auto& y) {
        return cuda::EmbeddingForwardKernel<T, kN>{
            kRows,
            kWidth,
            100,
            x.data(),
            table.data(),
            positions.data(),
            cuda::DropoutFactors::of({.probability = 0.3, .keys = keys.data(), .layer = 3}),
            y.data()};
      },
      targets, noise<T>(kWidth * kWidth, 1), noise<T>(100 * kWidth, 2), Buffer<uint64_t>{7, 8, 9},
      Buffer<T>(kRows * kWidth));
  // Row 5 was looked up by all symbols with even numbers, row 2 by the others.
  Buffer<int32_t> x(kRows), order(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    x[i] = i % 2 == 0 ? 5 : 2;
    order[i] = static_cast<int32_t>(i < kRows / 2 ? 2 * i + 1 : 2 * (i - kRows / 2));
  }
  compare(
      "embedding backward", bound,
      [](auto& tokens, auto& sorted, auto& dy, auto& partial, auto& dtable) {
        return cuda::EmbeddingBackwardKernel<T, kN>{
            kRows, kWidth, tokens.data(), sorted.data(), dy.data(), partial.data(), dtable.data()};
      },
      x, order, noise<T>(kRows * kWidth, 1), Buffer<W>(cuda::embedding_partial(kRows, kWidth)),
      noise<T>(8 * kWidth, 2));
  // Of the last third each was looked up once to five times, so that its rows are of one block.
  Buffer<int32_t> rare = x;
  for (size_t i = 2 * (kRows / 3); i < kRows; ++i) {
    rare[i] = static_cast<int32_t>(8 + (i / 3) % 40);
  }
  Buffer<int32_t> by_token(kRows);
  for (size_t i = 0; i < kRows; ++i) by_token[i] = static_cast<int32_t>(i);
  std::stable_sort(by_token.begin(), by_token.end(), [&](int32_t a, int32_t b) {
    return rare[static_cast<size_t>(a)] < rare[static_cast<size_t>(b)];
  });
  compare(
      "embedding backward, rare tokens", bound,
      [](auto& tokens, auto& sorted, auto& dy, auto& partial, auto& dtable) {
        return cuda::EmbeddingBackwardKernel<T, kN>{
            kRows, kWidth, tokens.data(), sorted.data(), dy.data(), partial.data(), dtable.data()};
      },
      rare, by_token, noise<T>(kRows * kWidth, 1),
      Buffer<W>(cuda::embedding_partial(kRows, kWidth)), noise<T>(48 * kWidth, 2));
  compare(
      "embedding backward, frequent tokens", bound,
      [](auto& tokens, auto& sorted, auto& partial, auto& dtable) {
        return cuda::AddEmbeddingPartsKernel<T>{kRows,         kWidth,         tokens.data(),
                                                sorted.data(), partial.data(), dtable.data()};
      },
      x, order, noise<W>(cuda::embedding_partial(kRows, kWidth), 1), noise<T>(8 * kWidth, 2));
}

/// Kernels that have packs of one size, or none.
template <class T>
void compare_elements() {
  constexpr size_t kRows = 60, kWidth = 72, kCount = kRows * kWidth;
  using W = Wide<T>;
  compare(
      "relu backward", 0,
      [](auto& y, auto& dy) {
        return cuda::ReluBackwardKernel<T, cuda::kPack<T>>{kCount, y.data(), dy.data()};
      },
      noise<T>(kCount, 1), noise<T>(kCount, 2));
  compare(
      "slices", 0,
      [](auto& partial, auto& sums) {
        return cuda::AddSlicesKernel<T>{kRows, kWidth, partial.data(), true, sums.data()};
      },
      noise<W>(kCount, 1), noise<T>(kWidth, 2));
  compare(
      "slices of two sums", 0,
      [](auto& partial, auto& sums, auto& second) {
        return cuda::AddSlicesKernel<T>{kRows / 2, kWidth,      partial.data(),
                                        false,     sums.data(), second.data()};
      },
      noise<W>(kCount, 1), noise<T>(kWidth, 2), noise<T>(kWidth, 3));
  for (const size_t slices : {64, 65, 129, 257}) {
    constexpr size_t kOddWidth = 37;
    compare(
        "many slices of two sums", 0,
        [&](auto& partial, auto& sums, auto& second) {
          return cuda::AddSlicesKernel<T>{slices, kOddWidth,   partial.data(),
                                          true,   sums.data(), second.data()};
        },
        noise<W>(2 * slices * kOddWidth, 1), noise<T>(kOddWidth, 2), noise<T>(kOddWidth, 3));
  }
  Buffer<int32_t> targets(kRows);
  for (size_t i = 0; i < kRows; ++i) targets[i] = static_cast<int32_t>(mix(i) % kWidth);
  constexpr LogitsShape kLogits{.rows = kRows, .classes = kWidth, .stride = 128};
  // Rows that a block keeps in the usual shared memory, in more, and not at all.
  for (const LogitsShape& shape :
       {kLogits, LogitsShape{2, 50257, 50304}, LogitsShape{2, 60001, 60032}}) {
    for (const bool gradient : {false, true}) {
      compare(
          "cross-entropy", bound_of<T>(64),
          [&](auto& target, auto& logits, auto& losses) {
            return cuda::SoftmaxCrossEntropyKernel<T>{shape, target.data(), gradient, logits.data(),
                                                      losses.data()};
          },
          targets, noise<T>(shape.rows * shape.stride, 1, 10), Buffer<double>(kRows));
    }
  }
  compare(
      "correct answers", 0,
      [](auto& target, auto& probabilities, auto& hits) {
        return cuda::CountCorrectKernel<T>{kLogits, target.data(), probabilities.data(),
                                           hits.data()};
      },
      targets, noise<T>(kRows * kLogits.stride, 1), Buffer<double>(kRows));
  compare(
      "scale", 0,
      [](auto& values) {
        return cuda::ScaleKernel<T>{kCount, W(0.3), values.data()};
      },
      noise<T>(kCount, 1));
  compare(
      "dropout", 0,
      [](auto& keys, auto& values) {
        return cuda::DropKernel<T, cuda::kPack<T>>{
            cuda::DropoutFactors::of({.probability = 0.3, .keys = keys.data(), .layer = 3}), 2,
            kCount / 2, values.data()};
      },
      Buffer<uint64_t>{7, 8}, noise<T>(kCount, 1));
  compare(
      "SGD", 0,
      [](auto& factors, auto& units, auto& g, auto& velocity, auto& masters, auto& parameters) {
        return cuda::SgdKernel<T>{reinterpret_cast<const cuda::UpdateFactors<W>*>(factors.data()),
                                  {.units = units.data()},
                                  W(0.9),
                                  W(0.1),
                                  kCount,
                                  g.data(),
                                  velocity.data(),
                                  masters.data(),
                                  parameters.data()};
      },
      Buffer<W>(sizeof(cuda::UpdateFactors<W>) / sizeof(W), W(0.5)), decay_units(kCount),
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
        shape, cuda::DropoutFactors::of({.probability = dropout, .keys = key.data(), .layer = 3}),
        in.data(), sum.data(), out.data()};
  };
  compare("attention", bound_of<T>(64), forward, qkv, keys, sums, y);
  Buffer<uint64_t> own_keys = keys;
  cuda::testing::walk(forward(qkv, own_keys, sums, y));
  compare(
      "attention backward", bound_of<T>(256),
      [&](auto& in, auto& key, auto& out, auto& dout, auto& sum, auto& din) {
        return cuda::AttentionBackwardKernel<T, kSize>{
            shape,
            cuda::DropoutFactors::of({.probability = dropout, .keys = key.data(), .layer = 3}),
            in.data(),
            out.data(),
            dout.data(),
            sum.data(),
            din.data()};
      },
      qkv, keys, y, noise<T>(count, 2), sums, Buffer<T>(3 * count));
}

template <class T, bool kDrops>
void compare_tensor_attention() {
  constexpr int kSize = 64;
  constexpr size_t kSamples = 2, kContext = 200, kHeads = 2;
  const AttentionShape shape{kSamples, kContext, kHeads, kHeads * kSize};
  const size_t count = kSamples * kContext * shape.width, rows = kSamples * kHeads * kContext;
  // Where the GPU's exponential rounds to the other neighbour, so do products.
  const double bound = 2 * bound_of<T>(256);
  Buffer<T> qkv = noise<T>(3 * count, 1, 2), y(count), dy = noise<T>(count, 2), dqkv(3 * count);
  Buffer<float> sums(rows), products(rows);
  Buffer<uint64_t> keys{5, 6};
  const auto dropout = [](auto& key) {
    return cuda::DropoutFactors::of(
        {.probability = kDrops ? 0.1 : 0.0, .keys = key.data(), .layer = 3});
  };
  const auto forward = [&](auto& in, auto& key, auto& sum, auto& out) {
    return cuda::TensorAttentionForwardKernel<kSize, T>{shape, dropout(key), in.data(), sum.data(),
                                                        out.data()};
  };
  const auto backward = [&]<cuda::AttentionSide kSide>() {
    return [&](auto& in, auto& key, auto& out, auto& dout, auto& sum, auto& product, auto& din) {
      return cuda::TensorAttentionBackwardKernel<kSize, T, kSide, kDrops>{
          shape,       dropout(key), in.data(),      out.data(),
          dout.data(), sum.data(),   product.data(), din.data()};
    };
  };
  const auto of_queries = backward.template operator()<cuda::AttentionSide::kQueries>();
  const auto of_keys = backward.template operator()<cuda::AttentionSide::kKeys>();
  compare("attention on tensor cores", bound, forward, qkv, keys, sums, y);
  cuda::testing::walk(forward(qkv, keys, sums, y));
  compare("backward of its queries", bound, of_queries, qkv, keys, y, dy, sums, products, dqkv);
  cuda::testing::walk(of_queries(qkv, keys, y, dy, sums, products, dqkv));
  compare("backward of its keys", bound, of_keys, qkv, keys, y, dy, sums, products, dqkv);
}

}  // namespace

TEST_CASE("layers on a GPU equal the same kernels on the host, and themselves bit for bit") {
  compare_rows<float, 1>();
  compare_rows<float, 4>();
  compare_rows<BFloat16Bits, 1>();
  compare_rows<BFloat16Bits, 8>();
  compare_rows<Float16Bits, 8>();
  compare_elements<float>();
  compare_elements<BFloat16Bits>();
  compare_elements<Float16Bits>();
  for (const double dropout : {0.0, 0.1}) {
    compare_attention<float, 32>(dropout);
    compare_attention<float, 64>(dropout);
    compare_attention<BFloat16Bits, 64>(dropout);
    compare_attention<Float16Bits, 64>(dropout);
  }
  compare_tensor_attention<BFloat16Bits, false>();
  compare_tensor_attention<BFloat16Bits, true>();
  compare_tensor_attention<Float16Bits, false>();
  compare_tensor_attention<Float16Bits, true>();
  constexpr size_t kCount = 100'000;
  compare(
      "AdamW", bound_of<float>(64),
      [](auto& factors, auto& units, auto& g, auto& mean, auto& square, auto& masters,
         auto& parameters) {
        return cuda::AdamWKernel<BFloat16Bits>{
            reinterpret_cast<const cuda::UpdateFactors<float>*>(factors.data()),
            {.units = units.data()},
            0.1f,
            0.999f,
            0.001f,
            1e-8f,
            kCount,
            g.data(),
            mean.data(),
            square.data(),
            masters.data(),
            parameters.data()};
      },
      Buffer<float>(sizeof(cuda::UpdateFactors<float>) / sizeof(float), 0.5f), decay_units(kCount),
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
        return cuda::AddRowsKernel{kCount, values.data(), sum.data()};
      },
      noise<double>(kCount, 1), Buffer<double>(1));
}

}  // namespace rondo::trainer::layers_cuda_test
