// Dropout with the host's random numbers (../host/dropout.hpp): the same elements are dropped,
// whatever the device and the type.
#pragma once

#include "trainer/base/random.hpp"
#include "trainer/layers/cuda/block.hpp"

namespace rondo::trainer::cuda {

/// random_unit(key) < probability, as integers: a random_unit is a multiple of 2^-53, so that the
/// probability may be rounded up to one.
struct DropoutFactors {
  uint64_t dropped_below = 0;      // probability * 2^53, rounded up; 0: none
  double kept = 1;                 // 1 / (1 - probability)
  const uint64_t* keys = nullptr;  // by sample, on the device; null if the probability is 0

  /// `probability` in [0, 1).
  static DropoutFactors of(double probability, const uint64_t* keys) {
    if (probability == 0) return {};
    return {.dropped_below = static_cast<uint64_t>(std::ceil(probability * 0x1.0p53)),
            .kept = 1 / (1 - probability),
            .keys = keys};
  }

  /// What the element of that number in that sample is multiplied by.
  template <class W>
  RONDO_DEVICE W factor(size_t sample, size_t element) const {
    if (dropped_below == 0) return W{1};
    return mix(keys[sample] + element) >> 11 < dropped_below ? W{0} : static_cast<W>(kept);
  }
};

/// In place on `samples` x `size` values.
template <class T>
struct DropKernel {
  DropoutFactors dropout;
  size_t samples, size;
  T* values;

  static constexpr uint32_t kThreads = 256;
  Grid grid() const { return {.x = static_cast<uint32_t>(ceil_div(samples * size, kThreads))}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    const size_t i = size_t{block.index().x} * kThreads + block.thread();
    if (i >= samples * size) return;
    values[i] = narrow<T>(widen(values[i]) * dropout.factor<Wide<T>>(i / size, i % size));
  }
};

}  // namespace rondo::trainer::cuda
