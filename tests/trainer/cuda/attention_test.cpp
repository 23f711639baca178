// Attention on a GPU, walked on the host.
#include "trainer/layers/cuda/attention.hpp"

#include "tests/trainer/cuda/values.hpp"
#include "tests/trainer/gradient_check.hpp"
#include "trainer/layers/host/attention.hpp"

namespace rondo::trainer::cuda_attention_test {

using cuda::testing::as;
using cuda::testing::check_close;
using cuda::testing::dot;
using cuda::testing::in_every_order;
using cuda::testing::noise;
using cuda::testing::Order;
using cuda::testing::unit;
using cuda::testing::Values;
using cuda::testing::walk;
using cuda::testing::wide;
using trainer::testing::check_gradient;

namespace {

constexpr size_t kLayer = 7;  // of the random numbers

/// Attention with everything that it reads and writes; heads of `size` numbers, 0: kSize.
template <class T, int kSize>
struct Attention {
  AttentionShape shape;
  std::vector<uint64_t> keys;
  double probability;
  std::vector<T> qkv, y, dy, dqkv;
  std::vector<cuda::Wide<T>> sums;

  Attention(size_t samples, size_t context, size_t heads, double dropped, size_t size = 0)
      : shape{samples, context, heads, heads * (size == 0 ? kSize : size)},
        probability(dropped),
        qkv(as<T>(noise(samples * context * 3 * shape.width, 1, 2))),
        y(samples * context * shape.width),
        dy(as<T>(noise(y.size(), 2))),
        dqkv(qkv.size()),
        sums(samples * heads * context) {
    for (size_t s = 0; s < samples; ++s) keys.push_back(mix(s));
  }
  cuda::DropoutFactors dropout() const {
    return cuda::DropoutFactors::of(
        {.probability = probability, .keys = keys.data(), .layer = kLayer});
  }
  void forward(Order order = Order::kForwards) {
    walk(
        cuda::AttentionForwardKernel<T, kSize>{shape, dropout(), qkv.data(), sums.data(), y.data()},
        order);
  }
  void backward(Order order = Order::kForwards) {
    walk(cuda::AttentionBackwardKernel<T, kSize>{shape, dropout(), qkv.data(), y.data(), dy.data(),
                                                 sums.data(), dqkv.data()},
         order);
  }
};

template <class T, int kSize>
void compare_attention(size_t samples, size_t context, size_t heads, double probability,
                       size_t size = 0) {
  INFO("context " << context << ", heads of " << size << " in " << kSize << ", dropout "
                  << probability);
  Attention<T, kSize> device(samples, context, heads, probability, size);
  const AttentionShape shape{samples, context, heads, device.shape.width};
  const trainer::Dropout dropout{.probability = probability,
                                 .keys = probability > 0 ? device.keys.data() : nullptr,
                                 .layer = kLayer};
  Values probabilities(samples * heads * probabilities_per_head(context));
  Values scratch(attention_scratch(shape)), y(device.y.size()), dqkv(device.qkv.size());
  const Values qkv = wide(device.qkv), dy = wide(device.dy);
  attention_forward<double>({.shape = shape,
                             .dropout = dropout,
                             .qkv = qkv.data(),
                             .probabilities = probabilities.data(),
                             .scratch = scratch.data(),
                             .y = y.data()});
  attention_backward<double>({.shape = shape,
                              .dropout = dropout,
                              .qkv = qkv.data(),
                              .probabilities = probabilities.data(),
                              .dy = dy.data(),
                              .scratch = scratch.data(),
                              .dqkv = dqkv.data()});
  device.forward();
  check_close(wide(device.y), y, 32 * unit<cuda::Wide<T>>() + unit<T>());
  device.backward();
  // Gradients are sums over the context of products with y, which is rounded.
  const double terms = std::sqrt(static_cast<double>(context)) * 8;
  check_close(wide(device.dqkv), dqkv, 64 * unit<cuda::Wide<T>>() * terms + unit<T>() * terms / 4);
}

}  // namespace

TEST_CASE("cuda attention: forward and backward as the host's, at the edges of tiles") {
  for (const size_t context : {size_t{1}, size_t{5}, size_t{32}, size_t{33}, size_t{70}}) {
    compare_attention<double, 8>(2, context, 2, 0);
    compare_attention<double, 32>(1, context, 1, 0.2);
    compare_attention<float, 64>(1, context, 2, 0);
    compare_attention<float, 16>(2, context, 1, 0.1);
    compare_attention<cuda::BFloat16Bits, 64>(1, context, 1, 0);
  }
}

TEST_CASE("cuda attention: heads are padded") {
  for (const size_t context : {size_t{5}, size_t{33}}) {
    compare_attention<double, 16>(2, context, 2, 0, 9);
    compare_attention<double, 32>(1, context, 2, 0.2, 31);
    compare_attention<float, 64>(1, context, 2, 0, 40);
    compare_attention<float, 128>(1, context, 1, 0.1, 100);
    compare_attention<cuda::BFloat16Bits, 128>(1, context, 1, 0);
  }
}

TEST_CASE("cuda attention: backward equals central differences, with dropout") {
  Attention<double, 8> device(1, 35, 1, 0.2);
  const auto loss = [&] {
    device.forward();
    return dot(device.dy, device.y);
  };
  loss();
  device.backward();
  check_gradient(device.qkv, device.dqkv, loss);
}

TEST_CASE("cuda attention: no order of a block's threads changes a bit; a NaN stays one") {
  const auto run = [](Order order) {
    Attention<float, 16> device(1, 70, 2, 0.1);
    device.forward(order);
    device.backward(order);
    std::vector<float> all = device.y;
    all.insert(all.end(), device.dqkv.begin(), device.dqkv.end());
    return all;
  };
  in_every_order<float>(run);
  Attention<float, 16> device(1, 40, 1, 0);
  device.qkv[35 * 48] = std::nanf("");  // a query
  device.forward();
  for (size_t i = 0; i < device.y.size(); ++i) {
    REQUIRE(std::isnan(device.y[i]) == (i / 16 == 35));
  }
}

}  // namespace rondo::trainer::cuda_attention_test
