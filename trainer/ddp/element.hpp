// The types that gradients may have, for loops over their elements.
#pragma once

#include "kernels/element.hpp"
#include "rondo/types.hpp"

namespace rondo::ddp {

/// Calls `body` with the element type (kernels/element.hpp) of kFloat32, kFloat64, kBFloat16 or
/// kFloat16.
template <class Body>
void with_element(DataType type, const Body& body) {
  if (type == DataType::kFloat64) return body(kernels::Native<double>());
  if (type == DataType::kFloat16) return body(kernels::Half());
  if (type == DataType::kBFloat16) return body(kernels::BFloat16());
  body(kernels::Native<float>());
}

}  // namespace rondo::ddp
