// See dropout.hpp.
#include "trainer/layers/host/dropout.hpp"

#include "trainer/base/random.hpp"

namespace rondo::trainer {

uint64_t random_key(const Pass& pass, uint64_t sample_id, size_t layer) {
  return mix(mix(mix(mix(pass.seed) ^ pass.step) ^ sample_id) ^ layer);
}

double random_unit(uint64_t key) { return static_cast<double>(mix(key) >> 11) * 0x1.0p-53; }

template <class T>
void drop(double probability, uint64_t key, size_t first, size_t count, T* values) {
  const auto kept = static_cast<T>(1 / (1 - probability));
  for (size_t i = 0; i < count; ++i) {
    values[i] *= random_unit(key + first + i) < probability ? T{0} : kept;
  }
}

template <class T>
void drop(const Dropout& dropout, size_t samples, size_t size, T* values) {
  if (dropout.probability == 0) return;
  for (size_t s = 0; s < samples; ++s) {
    drop(dropout.probability, dropout.keys[s], 0, size, values + s * size);
  }
}

template void drop(double, uint64_t, size_t, size_t, float*);
template void drop(double, uint64_t, size_t, size_t, double*);
template void drop(const Dropout&, size_t, size_t, float*);
template void drop(const Dropout&, size_t, size_t, double*);

}  // namespace rondo::trainer
