// Where buckets may end when they are laid out anew: a pure function of tensors, the present layout and
// the parts in which gradients were reported as final.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "trainer/ddp/layout.hpp"

namespace rondo::ddp {

/// Borrowed. All tensors have one type, of `element_bytes`.
struct ReportedLayout {
  const std::vector<DdpTensor>& tensors;
  const BucketLayout& layout;
  size_t element_bytes;
  std::function<std::vector<size_t>(size_t tensor)> reported_parts;  // in its elements
};

/// With tensors, between the parts in which a gradient is reported, inside what is large, and where
/// buckets end now. At most about kMostUnits, of what is small the larger parts.
std::vector<size_t> unit_ends(const ReportedLayout& reported);
inline constexpr size_t kMostUnits = 256;

}  // namespace rondo::ddp
