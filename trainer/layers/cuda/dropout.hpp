// Dropout with the host's random numbers (../host/dropout.hpp): the same elements are dropped,
// whatever the device and the type.
#pragma once

#include "trainer/base/random.hpp"
#include "trainer/layers/cuda/block.hpp"
#include "trainer/layers/host/dropout.hpp"

namespace rondo::trainer::cuda {

/// random_unit(key) < probability, as integers: a random_unit is a multiple of 2^-53, so that the
/// probability may be rounded up to one.
struct DropoutFactors {
  uint64_t dropped_below = 0;      // probability * 2^53, rounded up; 0: none
  double kept = 1;                 // 1 / (1 - probability)
  const uint64_t* keys = nullptr;  // by sample, on the device; null if the probability is 0
  size_t layer = 0;                // whose random numbers they are

  static DropoutFactors of(const Dropout& dropout) {
    if (dropout.probability == 0) return {};
    return {.dropped_below = static_cast<uint64_t>(std::ceil(dropout.probability * 0x1.0p53)),
            .kept = 1 / (1 - dropout.probability),
            .keys = dropout.keys,
            .layer = dropout.layer};
  }

  /// What the element of that number in that sample is multiplied by.
  template <class W>
  RONDO_DEVICE W factor(size_t sample, size_t element) const {
    if (dropped_below == 0) return W{1};
    return mix(layer_key(keys[sample], layer) + element) >> 11 < dropped_below
               ? W{0}
               : static_cast<W>(kept);
  }
  /// The same in two steps: the key of a sample, if anything is dropped, and whether an element's
  /// sum with it says so.
  RONDO_DEVICE uint64_t key(size_t sample) const { return layer_key(keys[sample], layer); }
  RONDO_DEVICE bool drops(uint64_t element_key) const {
    return mix(element_key) >> 11 < dropped_below;
  }
};

/// In place on `samples` x `size` values. N divides size.
template <class T, int N>
struct DropKernel {
  DropoutFactors dropout;
  size_t samples, size;
  T* values;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(samples * size / N, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = (size_t{block.index().x} * kThreads + block.thread()) * N;
    if (i >= samples * size) return;
    const size_t sample = i / size, element = i % size;
    Pack<T, N> pack = load<N>(values + i);
    for (int j = 0; j < N; ++j) {
      pack.at[j] = narrow<T>(widen(pack.at[j]) * dropout.factor<Wide<T>>(sample, element + j));
    }
    store(pack, values + i);
  }
};

}  // namespace rondo::trainer::cuda
