// The kernels of a type, looked up once, from a file that Highway compiles for each instruction set.
#pragma once

#include <type_traits>

namespace rondo::trainer {

/// REQUIRES: the same functions in every call, those of HWY_DYNAMIC_DISPATCH.
template <class T, template <class> class Kernels>
const Kernels<T>& kernels_for(Kernels<float> (*of_float)(), Kernels<double> (*of_double)()) {
  static const Kernels<T> kernels = [&] {
    if constexpr (std::is_same_v<T, float>) {
      return of_float();
    } else {
      return of_double();
    }
  }();
  return kernels;
}

}  // namespace rondo::trainer
