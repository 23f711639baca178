// Attention on tensor cores, walked on the host, and the fragments that it is made of.
#include "tests/trainer/cuda/attention_rig.hpp"

namespace rondo::trainer::cuda_attention_tensor_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

/// d[16 x 8] += a[16 x 16] b[16 x 8] by one warp. Where an element lies in a fragment is as the PTX
/// ISA has it, "Matrix Fragments for mma.m16n8k16 with floating point type": element i of a thread's
/// a, b or c as a row and a column.
template <class Bits>
struct MmaKernel {
  const Bits* a;
  const Bits* b;
  float* d;
  static constexpr uint32_t kThreads = kWarp;
  Grid grid() const { return {}; }
  size_t shared_bytes() const { return 0; }
  template <class Block>
  void run(Block& block) const {
    const uint32_t group = block.thread() >> 2, in_group = block.thread() % 4;
    const auto pair = [](Bits lower, Bits upper) {
      return lower.bits | uint32_t{upper.bits} << 16;
    };
    Bits of_a[8], of_b[4];
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
      const uint32_t column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
      of_a[i] = a[row * 16 + column];
    }
    for (uint32_t i = 0; i < 4; ++i) {
      of_b[i] = b[(in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0)) * 8 + group];
    }
    const auto place = [&](uint32_t i) {
      return (i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1);
    };
    float sums[4];
    for (uint32_t i = 0; i < 4; ++i) sums[i] = d[place(i)];
    block.template mma<Bits>(sums,
                             {pair(of_a[0], of_a[1]), pair(of_a[2], of_a[3]),
                              pair(of_a[4], of_a[5]), pair(of_a[6], of_a[7])},
                             pair(of_b[0], of_b[1]), pair(of_b[2], of_b[3]));
    for (uint32_t i = 0; i < 4; ++i) d[place(i)] = sums[i];
  }
};

/// Products of 16 x 16 by one warp, from shared memory: a b, a b^T, and (a b) b.
template <class Bits>
struct FragmentsKernel {
  const Bits* a;
  const Bits* b;
  float* products;  // [3 x 16 x 16]
  static constexpr uint32_t kThreads = kWarp, kStride = kTileStride<32>;
  Grid grid() const { return {}; }
  size_t shared_bytes() const { return 32 * kStride * sizeof(Bits); }
  template <class Block>
  void run(Block& block) const {
    Bits* const left = block.template shared<Bits>();
    Bits* const right = left + 16 * kStride;
    const uint32_t row = block.thread() / 2, column = block.thread() % 2 * 8;
    block.copy_async(left + row * kStride + column, a + row * 16 + column, true);
    block.copy_async(right + row * kStride + column, b + row * 16 + column, true);
    block.wait_copies();
    block.sync();
    Fragment of_a, of_b, of_b_rows, of_product;
    load_left<kStride>(block, left, of_a);
    load_right<kStride>(block, right, of_b);
    load_right_of_rows<kStride>(block, right, of_b_rows);
    Sums sums[3][2] = {};
    multiply_fragments<Bits>(block, of_a, of_b, sums[0][0], sums[0][1]);
    multiply_fragments<Bits>(block, of_a, of_b_rows, sums[1][0], sums[1][1]);
    round_to_left<Bits>(sums[0][0], sums[0][1], of_product);
    multiply_fragments<Bits>(block, of_product, of_b, sums[2][0], sums[2][1]);
    for (uint32_t i = 0; i < 3 * 8; ++i) {
      const uint32_t e = i % 4, to_row = block.thread() / 4 + e / 2 * 8;
      products[i / 8 * 256 + to_row * 16 + i / 4 % 2 * 8 + block.thread() % 4 * 2 + e % 2] =
          sums[i / 8][i / 4 % 2][e];
    }
  }
};

/// Whole numbers: their products have one value, whatever the order of sums.
template <class Bits>
std::vector<Bits> integers(size_t count, uint64_t key) {
  Values values = noise(count, key, 4);
  for (double& value : values) value = std::floor(value);
  return as<Bits>(values);
}

Values product(const Values& a, const Values& b, size_t columns, bool transposed) {
  Values sums(16 * columns);
  for (size_t i = 0; i < sums.size(); ++i) {
    for (size_t k = 0; k < 16; ++k) {
      const size_t column = i % columns;
      sums[i] += a[i / columns * 16 + k] * b[transposed ? column * 16 + k : k * columns + column];
    }
  }
  return sums;
}

template <int kSize, class Bits = BFloat16Bits>
void compare_with_host(size_t samples, size_t context, size_t heads, double probability) {
  INFO("context " << context << ", " << heads << " heads of " << kSize << ", dropout "
                  << probability);
  Attention<Bits> device(samples, context, heads, kSize, probability);
  const AttentionOnHost host(device);
  device.template tensor_forward<kSize>();
  // Probabilities are rounded, and so is their sum with values of up to 2.
  check_close(device.y, host.y, 2 * unit<Bits>());
  device.template tensor_backward<kSize>();
  // Sums over the context, of rounded probabilities and gradients of scores.
  check_close(device.dqkv, host.dqkv, 2 * unit<Bits>() * std::sqrt(static_cast<double>(context)));
}

}  // namespace

TEST_CASE("fragments: mma of a warp is a product in the layout of the PTX ISA") {
  const auto check = []<class Bits>(Bits) {
    const auto a = integers<Bits>(16 * 16, 1), b = integers<Bits>(16 * 8, 2);
    std::vector<float> d = as<float>(noise(16 * 8, 3));
    for (float& value : d) value = std::floor(value * 8);
    Values expected = product(wide(a), wide(b), 8, false);
    for (size_t i = 0; i < d.size(); ++i) expected[i] += d[i];
    walk(MmaKernel<Bits>{a.data(), b.data(), d.data()});
    CHECK(wide(d) == expected);
  };
  check(BFloat16Bits{});
  check(Float16Bits{});
}

TEST_CASE("fragments: operands from shared memory, transposed too, and from another product") {
  const auto check = []<class Bits>(Bits) {
    const auto a = integers<Bits>(16 * 16, 4), b = integers<Bits>(16 * 16, 5);
    std::vector<float> products(3 * 256);
    const auto run = [&](Order order) {
      walk(FragmentsKernel<Bits>{a.data(), b.data(), products.data()}, order);
      return products;
    };
    const Values all = wide(in_every_order<float>(run));
    const Values ab = product(wide(a), wide(b), 16, false);
    CHECK(Values(all.begin(), all.begin() + 256) == ab);
    CHECK(Values(all.begin() + 256, all.begin() + 512) == product(wide(a), wide(b), 16, true));
    const Values rounded = wide(as<Bits>(ab));
    CHECK(Values(all.begin() + 512, all.end()) == product(rounded, wide(b), 16, false));
  };
  check(BFloat16Bits{});
  check(Float16Bits{});
}

TEST_CASE("cuda attention on tensor cores: as the host's, at the edges of tiles") {
  for (const size_t context : {size_t{1}, size_t{17}, size_t{64}, size_t{100}, size_t{130}}) {
    compare_with_host<64>(1, context, 3, 0);
    compare_with_host<64>(2, context, 1, 0.2);
  }
  for (const size_t context : {size_t{17}, size_t{100}}) {
    compare_with_host<128>(1, context, 1, 0.1);
    compare_with_host<32>(1, context, 3, 0);
  }
  compare_with_host<64>(5, 17, 2, 0.2);  // samples beyond those whose blocks begin together
  compare_with_host<64, Float16Bits>(1, 100, 2, 0.2);
  compare_with_host<32, Float16Bits>(1, 17, 3, 0);
}

TEST_CASE("cuda attention on tensor cores: its sums are those of the scalar kernels") {
  Attention<BFloat16Bits> tensor(2, 70, 3, 64, 0.5), scalar = tensor;
  tensor.tensor_forward<64>();
  scalar.scalar_forward<64>();
  check_close(wide(tensor.sums), wide(scalar.sums), 1e-5);
  // A backward pass may take what the other kind of forward pass has left.
  scalar.y = tensor.y;
  scalar.sums = tensor.sums;
  tensor.tensor_backward<64>();
  scalar.scalar_backward<64>();
  check_close(wide(tensor.dqkv), wide(scalar.dqkv), 8 * unit<BFloat16Bits>());
}

TEST_CASE("cuda attention on tensor cores: no order of a block's threads changes a bit") {
  for (const double probability : {0.0, 0.1}) {
    in_every_order<BFloat16Bits>([&](Order order) {
      Attention<BFloat16Bits> device(1, 150, 1, 64, probability);
      device.tensor_forward<64>(order);
      device.tensor_backward<64>(order);
      return device.results();
    });
  }
}

TEST_CASE("cuda attention on tensor cores: a NaN stays one, in its own row") {
  check_nan_query(Attention<BFloat16Bits>(1, 40, 1, 64, 0),
                  [](auto& device) { device.template tensor_forward<64>(); });
}

TEST_CASE("cuda attention on tensor cores: which operands it takes") {
  alignas(16) const BFloat16Bits values[16] = {};
  CHECK(tensor_attention({1, 8, 12, 768}, {values, values + 8}));
  CHECK_FALSE(tensor_attention({1, 8, 12, 768}, {values, values + 4}));
  CHECK_FALSE(tensor_attention({1, 8, 4, 192}, {values}));
}

}  // namespace rondo::trainer::cuda_attention_tensor_test
