// Made-up numbers for a layer, and a loss of what it makes of them.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/base/random.hpp"

namespace rondo::trainer::testing {

using Values = std::vector<double>;

template <class T = double>
std::vector<T> noise(size_t count, uint64_t key, double scale = 1, double shift = 0) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(shift + scale * symmetric_unit(key * 1000003 + i));
  }
  return values;
}

/// A scalar function of a layer's output whose gradient with respect to it is `weights`.
inline double dot(const Values& weights, const Values& output) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * output[i];
  return sum;
}

template <class T>
std::vector<T> doubled(std::vector<T> values) {
  for (T& v : values) v *= 2;
  return values;
}

}  // namespace rondo::trainer::testing
