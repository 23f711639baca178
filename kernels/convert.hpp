// Conversion between fp32 and 16-bit floats: what gradients do that travel compressed. Every variant
// equals half.hpp bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rondo/types.hpp"

namespace rondo::kernels {

/// fp32 to and from one 16-bit type. `from` and `to` must not overlap.
struct Conversion {
  /// to[i] = from[i] * factor, rounded once to nearest even. A factor of 1 changes no bit.
  void (*narrow)(const float* from, uint16_t* to, size_t count, float factor);
  /// to[i] = from[i]: exact.
  void (*widen)(const uint16_t* from, float* to, size_t count);
};

/// For kFloat16 or kBFloat16, with the instruction set of move_function(). Thread-safe.
Conversion conversion(DataType type);

/// The scalar reference for the same, always available.
Conversion scalar_conversion(DataType type);

}  // namespace rondo::kernels
