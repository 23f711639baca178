// The trainer's kernels on a GPU, against the same kernels walked on the host.
#include <algorithm>
#include <numeric>

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

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

/// For DecayMap.
Buffer<uint8_t> decay_units(size_t count) {
  Buffer<uint8_t> units(ceil_div(count, DecayMap::kUnit));
  for (size_t u = 0; u < units.size(); ++u) units[u] = u % 3 == 0;
  return units;
}

template <class W>
Buffer<UpdateFactors<W>> update_factors() {
  const W half(0.5);
  return Buffer<UpdateFactors<W>>(1, {half, half, half, half, half});
}

Buffer<int32_t> random_targets(size_t count, size_t classes) {
  Buffer<int32_t> targets(count);
  for (size_t i = 0; i < count; ++i) targets[i] = static_cast<int32_t>(mix(i) % classes);
  return targets;
}

DropoutFactors dropout_of(double probability, const Buffer<uint64_t>& keys) {
  return DropoutFactors::of({.probability = probability, .keys = keys.data(), .layer = 3});
}

template <class T, int kPacks>
void compare_layer_norm_backward(size_t width) {
  constexpr size_t kRows = 300;
  using Whole = LayerNormBackwardKernel<T, kPacks>;
  compare<Whole>("layer norm backward, whole", bound_of<T>(64), kRows, width,
                 noise<T>(kRows * width, 1), noise<Wide<T>>(kRows, 2), noise<T>(width, 3),
                 noise<T>(kRows * width, 4), noise<T>(kRows * width, 5),
                 Buffer<Wide<T>>(2 * Whole::slices(kRows) * width));
}

template <class T, int kN>
void compare_rows() {
  constexpr size_t kRows = 300, kWidth = 264, kCount = kRows * kWidth,
                   kSlices = ColumnTile<T, kN>{kRows, kWidth}.slices();
  const double bound = bound_of<T>(64);
  using W = Wide<T>;
  const auto row = [](uint64_t key) { return noise<T>(kWidth, key); };
  const auto rows = [](uint64_t key) { return noise<T>(kCount, key); };
  compare<AddBiasKernel<T, kN>>("bias", bound, kRows, kWidth, row(1), true, rows(2));
  compare<SumColumnsKernel<T, kN>>("sums of columns", bound, kRows, kWidth, kWidth, rows(1),
                                   Buffer<W>(kSlices * kWidth));
  compare<GeluForwardKernel<T, kN>>("gelu", bound, kRows, kWidth, row(1), noise<T>(kCount, 2, 5),
                                    Buffer<T>(kCount));
  compare<GeluBackwardKernel<T, kN>>("gelu backward", bound, kRows, kWidth, rows(1), rows(2),
                                     Buffer<W>(kSlices * kWidth));
  compare<LayerNormForwardKernel<T, kN>>("layer norm", bound, kRows, kWidth, rows(1), row(2),
                                         row(3), row(4), rows(5), Buffer<T>(kCount),
                                         Buffer<W>(kRows), Buffer<T>(kCount));
  compare<LayerNormBackwardInputKernel<T, kN>>("layer norm's input", bound, kRows, kWidth, rows(1),
                                               noise<W>(kRows, 2), row(3), rows(4), rows(5));
  compare<LayerNormBackwardParametersKernel<T, kN>>("layer norm's parameters", bound, kRows, kWidth,
                                                    rows(1), rows(2),
                                                    Buffer<W>(2 * kSlices * kWidth));
  if constexpr (sizeof(T) == 2 && kN > 1) {
    compare_layer_norm_backward<T, 1>(256);
    compare_layer_norm_backward<T, 2>(kWidth);
    compare_layer_norm_backward<T, 3>(768);
    compare_layer_norm_backward<T, 4>(1000);
  }
  const Buffer<uint64_t> keys{7, 8, 9};
  compare<EmbeddingForwardKernel<T, kN>>("embedding", bound, kRows, kWidth, size_t{100},
                                         random_targets(kRows, kWidth),
                                         noise<T>(kWidth * kWidth, 1), noise<T>(100 * kWidth, 2),
                                         dropout_of(0.3, keys), Buffer<T>(kCount));
  // Row 5 was looked up by all symbols with even numbers, row 2 by the others.
  Buffer<int32_t> x(kRows), order(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    x[i] = i % 2 == 0 ? 5 : 2;
    order[i] = static_cast<int32_t>(i < kRows / 2 ? 2 * i + 1 : 2 * (i - kRows / 2));
  }
  const size_t partial = embedding_partial(kRows, kWidth);
  compare<EmbeddingBackwardKernel<T, kN>>("embedding backward", bound, kRows, kWidth, x, order,
                                          rows(1), Buffer<W>(partial), noise<T>(8 * kWidth, 2));
  // Of the last third each was looked up once to five times, so that its rows are of one block.
  Buffer<int32_t> rare = x, by_token(kRows);
  for (size_t i = 2 * (kRows / 3); i < kRows; ++i) {
    rare[i] = static_cast<int32_t>(8 + (i / 3) % 40);
  }
  std::iota(by_token.begin(), by_token.end(), 0);
  std::stable_sort(by_token.begin(), by_token.end(), [&](int32_t a, int32_t b) {
    return rare[static_cast<size_t>(a)] < rare[static_cast<size_t>(b)];
  });
  compare<EmbeddingBackwardKernel<T, kN>>("embedding backward, rare tokens", bound, kRows, kWidth,
                                          rare, by_token, rows(1), Buffer<W>(partial),
                                          noise<T>(48 * kWidth, 2));
  compare<AddEmbeddingPartsKernel<T>>("embedding backward, frequent tokens", bound, kRows, kWidth,
                                      x, order, noise<W>(partial, 1), noise<T>(8 * kWidth, 2));
}

/// Kernels that have packs of one size, or none.
template <class T>
void compare_elements() {
  constexpr size_t kRows = 60, kWidth = 72, kCount = kRows * kWidth;
  using W = Wide<T>;
  const auto row = [](uint64_t key) { return noise<T>(kWidth, key); };
  compare<ReluBackwardKernel<T, kPack<T>>>("relu backward", 0, kCount, noise<T>(kCount, 1),
                                           noise<T>(kCount, 2));
  compare<AddSlicesKernel<T>>("slices", 0, kRows, kWidth, noise<W>(kCount, 1), true, row(2));
  compare<AddSlicesKernel<T>>("slices of two sums", 0, kRows / 2, kWidth, noise<W>(kCount, 1),
                              false, row(2), row(3));
  for (const size_t slices : {64, 65, 129, 257}) {
    constexpr size_t kOddWidth = 37;
    compare<AddSlicesKernel<T>>("many slices of two sums", 0, slices, kOddWidth,
                                noise<W>(2 * slices * kOddWidth, 1), true, noise<T>(kOddWidth, 2),
                                noise<T>(kOddWidth, 3));
  }
  const Buffer<int32_t> targets = random_targets(kRows, kWidth);
  constexpr LogitsShape kLogits{.rows = kRows, .classes = kWidth, .stride = 128};
  // Rows that a block keeps in the usual shared memory, in more, and not at all.
  for (const LogitsShape& shape :
       {kLogits, LogitsShape{2, 50257, 50304}, LogitsShape{2, 60001, 60032}}) {
    for (const bool gradient : {false, true}) {
      compare<SoftmaxCrossEntropyKernel<T>>("cross-entropy", bound_of<T>(64), shape, targets,
                                            gradient, noise<T>(shape.rows * shape.stride, 1, 10),
                                            Buffer<double>(kRows));
    }
  }
  compare<CountCorrectKernel<T>>("correct answers", 0, kLogits, targets,
                                 noise<T>(kRows * kLogits.stride, 1), Buffer<double>(kRows));
  compare<ScaleKernel<T>>("scale", 0, kCount, W(0.3), noise<T>(kCount, 1));
  const Buffer<uint64_t> keys{7, 8};
  compare<DropKernel<T, kPack<T>>>("dropout", 0, dropout_of(0.3, keys), size_t{2}, kCount / 2,
                                   noise<T>(kCount, 1));
  const auto factors = update_factors<W>();
  const Buffer<uint8_t> units = decay_units(kCount);
  compare<SgdKernel<T>>("SGD", 0, factors.data(), DecayMap{units.data()}, W(0.9), W(0.1), kCount,
                        noise<T>(kCount, 1), noise<W>(kCount, 2), noise<W>(kCount, 3),
                        Buffer<T>(kCount));
}

template <class T, int kSize>
void compare_attention(double probability) {
  constexpr size_t kSamples = 2, kContext = 70, kHeads = 2;
  const AttentionShape shape{kSamples, kContext, kHeads, kHeads * kSize};
  const size_t count = kSamples * kContext * shape.width, rows = kSamples * kHeads * kContext;
  const Buffer<T> qkv = noise<T>(3 * count, 1, 2);
  const Buffer<uint64_t> keys{5, 6};
  const DropoutFactors dropout = dropout_of(probability, keys);
  Buffer<T> y(count);
  Buffer<Wide<T>> sums(rows);
  using Forward = AttentionForwardKernel<T, kSize>;
  compare<Forward>("attention", bound_of<T>(64), shape, dropout, qkv, sums, y);
  walk(Forward{shape, dropout, qkv.data(), sums.data(), y.data()});
  compare<AttentionBackwardKernel<T, kSize>>("attention backward", bound_of<T>(256), shape, dropout,
                                             qkv, y, noise<T>(count, 2), sums,
                                             Buffer<T>(3 * count));
}

template <class T, bool kDrops>
void compare_tensor_attention() {
  constexpr int kSize = 64;
  constexpr size_t kSamples = 2, kContext = 200, kHeads = 2;
  const AttentionShape shape{kSamples, kContext, kHeads, kHeads * kSize};
  const size_t count = kSamples * kContext * shape.width, rows = kSamples * kHeads * kContext;
  // Where the GPU's exponential rounds to the other neighbour, so do products.
  const double bound = 2 * bound_of<T>(256);
  const Buffer<T> qkv = noise<T>(3 * count, 1, 2), dy = noise<T>(count, 2);
  const Buffer<uint64_t> keys{5, 6};
  const DropoutFactors dropout = dropout_of(kDrops ? 0.1 : 0.0, keys);
  Buffer<T> y(count), dqkv(3 * count);
  Buffer<float> sums(rows), products(rows);
  using Forward = TensorAttentionForwardKernel<kSize, T>;
  using OfQueries = TensorAttentionBackwardKernel<kSize, T, AttentionSide::kQueries, kDrops>;
  using OfKeys = TensorAttentionBackwardKernel<kSize, T, AttentionSide::kKeys, kDrops>;
  compare<Forward>("attention on tensor cores", bound, shape, dropout, qkv, sums, y);
  walk(Forward{shape, dropout, qkv.data(), sums.data(), y.data()});
  compare<OfQueries>("backward of its queries", bound, shape, dropout, qkv, y, dy, sums, products,
                     dqkv);
  walk(OfQueries{shape, dropout, qkv.data(), y.data(), dy.data(), sums.data(), products.data(),
                 dqkv.data()});
  compare<OfKeys>("backward of its keys", bound, shape, dropout, qkv, y, dy, sums, products, dqkv);
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
  const auto factors = update_factors<float>();
  const Buffer<uint8_t> units = decay_units(kCount);
  compare<AdamWKernel<BFloat16Bits>>(
      "AdamW", bound_of<float>(64), factors.data(), DecayMap{units.data()}, 0.1f, 0.999f, 0.001f,
      1e-8f, kCount, noise<BFloat16Bits>(kCount, 1), noise<float>(kCount, 2),
      Buffer<float>(kCount, 0.5f), noise<float>(kCount, 4), Buffer<BFloat16Bits>(kCount));
  using Squares = SumOfSquaresKernel<float>;
  compare<Squares>("sum of squares", 1e-12, kCount, noise<float>(kCount, 1),
                   Buffer<double>(Squares::kBlocks));
  compare<AddRowsKernel>("sum of sums", 1e-12, kCount, noise<double>(kCount, 1), Buffer<double>(1));
}

}  // namespace rondo::trainer::layers_cuda_test
