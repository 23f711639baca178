// The trainer's kernels on a GPU, against the same kernels walked on the host.
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <new>
#include <tuple>

#include "tests/harness/catch.hpp"
#include "tests/trainer/cuda/walk.hpp"
#include "trainer/layers/cuda/attention.hpp"
#include "trainer/layers/cuda/cross_entropy.hpp"
#include "trainer/layers/cuda/embedding.hpp"
#include "trainer/layers/cuda/gelu.hpp"
#include "trainer/layers/cuda/launch.hpp"
#include "trainer/layers/cuda/layer_norm.hpp"
#include "trainer/layers/cuda/rows.hpp"
#include "trainer/optim/cuda/flat.hpp"

namespace rondo::trainer::layers_cuda_test {

using cuda::BFloat16Bits;
using cuda::Wide;

namespace {

/// Memory that the host and the GPU access.
template <class T>
struct Managed {
  using value_type = T;
  T* allocate(size_t count) {
    void* memory = nullptr;
    if (cudaMallocManaged(&memory, count * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { cudaFree(memory); }
  bool operator==(const Managed&) const { return true; }
};
template <class T>
using Buffer = std::vector<T, Managed<T>>;

template <class T>
Buffer<T> noise(size_t count, uint64_t key, double size = 1) {
  Buffer<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = cuda::narrow<T>(static_cast<Wide<T>>(size * symmetric_unit(key * 1000003 + i)));
  }
  return values;
}

double as_double(int32_t value) { return value; }
double as_double(uint64_t value) { return static_cast<double>(value); }
double as_double(BFloat16Bits value) { return double{cuda::widen(value)}; }
double as_double(float value) { return double{value}; }
double as_double(double value) { return value; }

template <class T>
void check_close(const Buffer<T>& got, const Buffer<T>& expected, double bound) {
  for (size_t i = 0; i < got.size(); ++i) {
    const double a = as_double(got[i]), b = as_double(expected[i]);
    if (std::abs(a - b) <= bound * (1 + std::abs(b))) continue;
    INFO("element " << i << " of " << got.size());
    REQUIRE(a == b);
  }
}

template <class T>
bool same_bits(const Buffer<T>& a, const Buffer<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// What `make` makes of the buffers, on the host and twice on the GPU: within `bound`, and the same
/// bits both times.
template <class Make, class... Ts>
void compare(const char* what, double bound, const Make& make, const Buffer<Ts>&... given) {
  INFO(what);
  std::tuple<Buffer<Ts>...> host(given...), device(given...), again(given...);
  cuda::testing::walk(std::apply(make, host));
  for (auto* buffers : {&device, &again}) {
    const Status launched = cuda::launch(what, std::apply(make, *buffers), nullptr);
    INFO(launched.message());
    REQUIRE(launched.ok());
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  [&]<size_t... kI>(std::index_sequence<kI...>) {
    (check_close(std::get<kI>(device), std::get<kI>(host), bound), ...);
    REQUIRE((same_bits(std::get<kI>(device), std::get<kI>(again)) && ...));
  }
  (std::index_sequence_for<Ts...>{});
}

template <class T>
double unit() {
  return std::is_same_v<T, BFloat16Bits> ? 0x1p-8 : 0x1p-23;
}

template <class T, int kN>
void compare_rows() {
  constexpr size_t kRows = 300, kWidth = 264, kSlices = 2;
  const double bound = 64 * unit<T>();
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
  compare("attention", 64 * unit<T>(), forward, qkv, keys, sums, y);
  Buffer<uint64_t> own_keys = keys;
  cuda::testing::walk(forward(qkv, own_keys, sums, y));
  compare(
      "attention backward", 256 * unit<T>(),
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
  for (const double dropout : {0.0, 0.1}) {
    compare_attention<float, 32>(dropout);
    compare_attention<float, 64>(dropout);
    compare_attention<BFloat16Bits, 64>(dropout);
  }
  constexpr size_t kCount = 100'000;
  compare(
      "AdamW", 64 * unit<float>(),
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
}

}  // namespace rondo::trainer::layers_cuda_test
