// Which gradients travel together, and where they lie: a pure function of the tensors' shapes, so
// that every rank and every run has the same layout. Moves nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "rondo/types.hpp"

namespace rondo::ddp {

struct BucketLayout {
  std::vector<DdpBucket> buckets;
  std::vector<size_t> offsets;       // of each tensor, in elements
  std::vector<size_t> byte_offsets;  // the same in bytes; multiples of 64
  size_t parameter_elements = 0;     // of the flat storage, without `adds_to` tensors
  size_t gradient_elements = 0;      // with them
  size_t parameter_bytes = 0, gradient_bytes = 0;
};

inline constexpr double kBytesPerMb = 1024 * 1024;

struct BucketCaps {
  size_t bytes;  // large enough to amortise the latency of an all-reduce; 0: one per tensor
  /// Of the first bucket, so that communication starts early, and of the last, which backward
  /// cannot hide.
  size_t small_bytes = size_t{1} << 20;
  /// Every bucket can be cut into so many blocks of equal size, each from a multiple of 64 bytes:
  /// what follows its last tensor lies later, and panels have that many rows.
  size_t blocks = 1;
};

/// Greedy in the given order: a tensor is added, and if that brings the bucket to its cap or above, the
/// bucket is closed. From the second bucket on it is closed before a tensor that would leave it
/// farther above the cap than it is below; small tensors just before such a tensor stay with it. It is
/// also closed before a tensor of another type. A tensor larger than the cap is cut into panels of whole rows, each of
/// which reaches the cap by less than a row. The last bucket is then relieved of all but its small
/// end. A tensor that adds to another travels alone, after all others.
///
/// `element_bytes`: of tensors that name no type.
BucketLayout make_layout(const std::vector<DdpTensor>& tensors, size_t element_bytes,
                         const BucketCaps& caps);

/// Of a matrix, or of what has more dimensions: the elements of a row; else 1.
size_t row_elements(const DdpTensor& tensor);

/// Buckets that end at these elements of the flat storage. Nothing where that cannot be: ends that do
/// not ascend to the last gradient, one inside padding, two types in a bucket, or a tensor that adds
/// to another and does not travel alone.
std::optional<BucketLayout> layout_with_ends(const std::vector<DdpTensor>& tensors,
                                             size_t element_bytes, const std::vector<size_t>& ends);

/// The opposite: where each bucket ends.
std::vector<size_t> ends_of(const BucketLayout& layout);

}  // namespace rondo::ddp
