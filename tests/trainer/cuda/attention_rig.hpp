// Attention with everything that it reads and writes, for kernels that are walked on the host, and
// what the host makes of the same.
#pragma once

#include <vector>

#include "tests/trainer/cuda/values.hpp"
#include "trainer/layers/cuda/attention_tensor_backward.hpp"
#include "trainer/layers/host/attention.hpp"

namespace rondo::trainer::cuda::testing {

template <class T>
struct Attention {
  AttentionShape shape;
  std::vector<uint64_t> keys;
  double probability;
  std::vector<T> qkv, y, dy, dqkv;
  std::vector<Wide<T>> sums, products;

  /// Heads of `size` numbers, which are dropped with a probability.
  Attention(size_t samples, size_t context, size_t heads, size_t size, double dropped)
      : shape{samples, context, heads, heads * size},
        probability(dropped),
        qkv(as<T>(noise(samples * context * 3 * shape.width, 1, 2))),
        y(samples * context * shape.width),
        dy(as<T>(noise(y.size(), 2))),
        dqkv(qkv.size()),
        sums(samples * heads * context),
        products(sums.size()) {
    for (size_t s = 0; s < samples; ++s) keys.push_back(mix(s));
  }
  Dropout dropout() const {
    return {
        .probability = probability, .keys = probability > 0 ? keys.data() : nullptr, .layer = 7};
  }
  DropoutFactors factors() const { return DropoutFactors::of(dropout()); }

  /// On the scalar kernels, for heads of up to kSize numbers.
  template <int kSize>
  void scalar_forward(Order order = Order::kForwards) {
    walk(AttentionForwardKernel<T, kSize>{shape, factors(), qkv.data(), sums.data(), y.data()},
         order);
  }
  template <int kSize>
  void scalar_backward(Order order = Order::kForwards) {
    walk(AttentionBackwardKernel<T, kSize>{shape, factors(), qkv.data(), y.data(), dy.data(),
                                           sums.data(), dqkv.data()},
         order);
  }
  /// On tensor cores.
  template <int kSize>
  void tensor_forward(Order order = Order::kForwards) {
    walk(
        TensorAttentionForwardKernel<kSize, T>{shape, factors(), qkv.data(), sums.data(), y.data()},
        order);
  }
  template <int kSize>
  void tensor_backward(Order order = Order::kForwards) {
    const auto run = [&]<AttentionSide kSide, bool kDrops>() {
      walk(TensorAttentionBackwardKernel<kSize, T, kSide, kDrops>{shape, factors(), qkv.data(),
                                                                  y.data(), dy.data(), sums.data(),
                                                                  products.data(), dqkv.data()},
           order);
    };
    const auto run_sides = [&]<bool kDrops>() {
      run.template operator()<AttentionSide::kQueries, kDrops>();
      run.template operator()<AttentionSide::kKeys, kDrops>();
    };
    probability > 0 ? run_sides.template operator()<true>()
                    : run_sides.template operator()<false>();
  }

  std::vector<T> results() const {
    std::vector<T> all = y;
    all.insert(all.end(), dqkv.begin(), dqkv.end());
    return all;
  }
};

/// The results of the same operands on the host, in double.
struct AttentionOnHost {
  Values y, dqkv;

  template <class T>
  explicit AttentionOnHost(const Attention<T>& device)
      : y(device.y.size()), dqkv(device.qkv.size()) {
    const AttentionShape& shape = device.shape;
    const Values qkv = wide(device.qkv), dy = wide(device.dy);
    Values probabilities(shape.samples * shape.heads * probabilities_per_head(shape.context)),
        scratch(attention_scratch(shape));
    attention_forward<double>({.shape = shape,
                               .dropout = device.dropout(),
                               .qkv = qkv.data(),
                               .probabilities = probabilities.data(),
                               .scratch = scratch.data(),
                               .y = y.data()});
    attention_backward<double>({.shape = shape,
                                .dropout = device.dropout(),
                                .qkv = qkv.data(),
                                .probabilities = probabilities.data(),
                                .dy = dy.data(),
                                .scratch = scratch.data(),
                                .dqkv = dqkv.data()});
  }
};

/// A query that is NaN makes its own row NaN, and no other.
template <class T, class Forward>
void check_nan_query(Attention<T> device, const Forward& forward) {
  const size_t width = device.shape.width;
  device.qkv[35 * 3 * width] = as<T>({std::nan("")})[0];
  forward(device);
  const Values y = wide(device.y);
  for (size_t i = 0; i < y.size(); ++i) REQUIRE(std::isnan(y[i]) == (i / width == 35));
}

}  // namespace rondo::trainer::cuda::testing
