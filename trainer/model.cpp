// How parameters start. See model.hpp.
#include "trainer/model.hpp"

#include "trainer/random.hpp"

namespace rondo::trainer {

template <class T>
void initialise(const Parameter& parameter, int index, uint64_t seed, T* values) {
  const uint64_t key = mix(mix(seed) ^ static_cast<uint64_t>(index));
  for (size_t i = 0; i < parameter.count; ++i) {
    values[i] = static_cast<T>(parameter.init_bound * symmetric_unit(key ^ i));
  }
}

template void initialise(const Parameter&, int, uint64_t, float*);
template void initialise(const Parameter&, int, uint64_t, double*);

}  // namespace rondo::trainer
