// Which gradients travel together, and where they lie: a pure function of the tensors' shapes, so
// that every rank and every run has the same layout. Moves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rondo/ddp.hpp"

namespace rondo::ddp {

struct Layout {
  std::vector<DdpBucket> buckets;
  std::vector<size_t> offsets;    // of each tensor, in elements; multiples of 64 bytes
  size_t parameter_elements = 0;  // of the flat storage, without `adds_to` tensors
  size_t gradient_elements = 0;   // with them
};

struct BucketCaps {
  size_t bytes;        // large enough to amortise the latency of an all-reduce; 0: one per tensor
  size_t small_bytes;  // the first, so that communication starts early, and the last, which
                       // backward cannot hide
};

/// Greedy in the given order: a tensor is added, and if that brings the bucket to its cap or above,
/// the bucket is closed. A tensor larger than the cap is cut into panels of whole rows, each of
/// which reaches the cap by less than a row. The last bucket is then relieved of all but its small
/// end. A tensor that adds to another travels alone, after all others.
Layout make_layout(const std::vector<DdpTensor>& tensors, size_t element_bytes,
                   const BucketCaps& caps);

uint64_t hash_of(const Layout& layout);

}  // namespace rondo::ddp
