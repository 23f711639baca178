// Attention on a GPU, walked on the host.
#include "trainer/layers/cuda/attention.hpp"

#include "tests/trainer/cuda/attention_rig.hpp"

namespace rondo::trainer::cuda_attention_test {

using namespace cuda;           // NOLINT: this file is about it
using namespace cuda::testing;  // NOLINT: its rig

namespace {

/// Heads of `size` numbers in a kernel for kSize; 0: as many.
template <class T, int kSize>
void compare_attention(size_t samples, size_t context, size_t heads, double probability,
                       size_t size = 0) {
  INFO("context " << context << ", heads of " << size << " in " << kSize << ", dropout "
                  << probability);
  Attention<T> device(samples, context, heads, size == 0 ? kSize : size, probability);
  const AttentionOnHost host(device);
  device.template scalar_forward<kSize>();
  check_close(device.y, host.y, 32 * unit<Wide<T>>() + unit<T>());
  device.template scalar_backward<kSize>();
  // Gradients are sums over the context of products with y, which is rounded.
  const double terms = std::sqrt(static_cast<double>(context)) * 8;
  check_close(device.dqkv, host.dqkv, 64 * unit<Wide<T>>() * terms + unit<T>() * terms / 4);
}

}  // namespace

TEST_CASE("cuda attention: forward and backward as the host's, at the edges of tiles") {
  for (const size_t context : {size_t{1}, size_t{5}, size_t{32}, size_t{33}, size_t{70}}) {
    compare_attention<double, 8>(2, context, 2, 0);
    compare_attention<double, 32>(1, context, 1, 0.2);
    compare_attention<float, 64>(1, context, 2, 0);
    compare_attention<float, 16>(2, context, 1, 0.1);
    compare_attention<BFloat16Bits, 64>(1, context, 1, 0);
  }
}

TEST_CASE("cuda attention: heads are padded") {
  for (const size_t context : {size_t{5}, size_t{33}}) {
    compare_attention<double, 16>(2, context, 2, 0, 9);
    compare_attention<double, 32>(1, context, 2, 0.2, 31);
    compare_attention<float, 64>(1, context, 2, 0, 40);
    compare_attention<float, 128>(1, context, 1, 0.1, 100);
    compare_attention<BFloat16Bits, 128>(1, context, 1, 0);
  }
}

TEST_CASE("cuda attention: no order of a block's threads changes a bit; a NaN stays one") {
  in_every_order<float>([](Order order) {
    Attention<float> device(1, 70, 2, 16, 0.1);
    device.scalar_forward<16>(order);
    device.scalar_backward<16>(order);
    return device.results();
  });
  check_nan_query(Attention<float>(1, 40, 1, 16, 0),
                  [](auto& device) { device.template scalar_forward<16>(); });
}

}  // namespace rondo::trainer::cuda_attention_test
