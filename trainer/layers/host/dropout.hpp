// Dropout: zeros with a given probability, and the rest scaled so that the mean stays. What is
// dropped is a pure function of a key and an element's number, computed again in backward; no mask
// is kept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "trainer/base/random.hpp"

namespace rondo::trainer {

/// One layer's dropout in one pass.
struct Dropout {
  double probability = 0;          // in [0, 1)
  const uint64_t* keys = nullptr;  // by sample of the batch (sample_key()); null if it is 0
  size_t layer = 0;                // whose random numbers they are

  uint64_t key(size_t sample) const { return layer_key(keys[sample], layer); }
};

/// Uniform in [0, 1).
inline double random_unit(uint64_t key) { return static_cast<double>(mix(key) >> 11) * 0x1.0p-53; }

/// In place on the elements first, first + 1, ... of what the key stands for. Its own backward. A
/// dropped NaN stays one.
template <class T>
void drop(double probability, uint64_t key, size_t first, size_t count, T* values) {
  const auto kept = static_cast<T>(1 / (1 - probability));
  for (size_t i = 0; i < count; ++i) {
    values[i] *= random_unit(key + first + i) < probability ? T{0} : kept;
  }
}

/// The same for `samples` x `size` values, sample by sample.
template <class T>
void drop(const Dropout& dropout, size_t samples, size_t size, T* values) {
  if (dropout.probability == 0) return;
  for (size_t s = 0; s < samples; ++s) {
    drop(dropout.probability, dropout.key(s), 0, size, values + s * size);
  }
}

}  // namespace rondo::trainer
