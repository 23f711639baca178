// How parameters start. See model.hpp.
#include "trainer/models/model.hpp"

#include <cmath>
#include <numbers>

#include "trainer/base/random.hpp"

namespace rondo::trainer {
namespace {

/// Standard normal, from two uniform numbers (Box and Muller 1958).
double normal(uint64_t key) {
  const double radius = 0.5 * (1 - symmetric_unit(mix(key)));  // in (0, 1]
  const double angle = std::numbers::pi * symmetric_unit(key);
  return std::sqrt(-2 * std::log(radius)) * std::cos(angle);
}

double start_of(const Init& init, uint64_t key) {
  switch (init.kind) {
    case Init::kConstant:
      return init.value;
    case Init::kUniform:
      return init.value * symmetric_unit(key);
    case Init::kNormal:
      return init.value * normal(key);
  }
  return 0;
}

}  // namespace

template <class T>
void initialise(const Parameter& parameter, int index, uint64_t seed, T* values) {
  const uint64_t key = mix(mix(seed) ^ static_cast<uint64_t>(index));
  const size_t count = parameter.count();
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(start_of(parameter.init, key ^ i));
}

template void initialise(const Parameter&, int, uint64_t, float*);
template void initialise(const Parameter&, int, uint64_t, double*);

}  // namespace rondo::trainer
