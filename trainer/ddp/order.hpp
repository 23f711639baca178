// In which order a step's buckets travel: which gradients are final, which bucket is next, and after
// which bucket each one may be updated. A function of the layout and of what backward reports:
// knows no ranks and moves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rondo/ddp.hpp"
#include "trainer/ddp/layout.hpp"

namespace rondo::ddp {

/// One thread. A step is: begin(), then mark_final() and take_next() in turn.
class BucketOrder {
 public:
  /// `update_each`: a bucket may be updated as soon as it has been reduced; else all wait for the
  /// last one. Borrows the layout.
  BucketOrder(const std::vector<DdpTensor>& tensors, const BucketLayout& layout, bool update_each);

  void begin();
  /// The first `count` elements of this tensor's gradient are final. Returns the buckets of which
  /// the tensor's piece thereby became final; nothing: these elements were
  /// final before. A `count` of 0 says nothing.
  std::optional<std::span<const size_t>> mark_final(size_t tensor, size_t count, int64_t now_ns);
  /// The next bucket that travels, once: all its pieces are final, and all buckets before it were
  /// taken, so that the order is the same on every rank.
  std::optional<size_t> take_next();

  /// Tensors of which some elements are not final.
  std::vector<size_t> unfinished() const;
  /// Buckets whose gradients nothing changes any more once `bucket` has been reduced; ascending. A
  /// bucket to which looked-up rows are added waits for the bucket of these rows.
  const std::vector<size_t>& updated_after(size_t bucket) const { return updated_after_[bucket]; }
  /// When the bucket's last gradient became final.
  int64_t ready_ns(size_t bucket) const { return ready_ns_[bucket]; }
  /// Whose that gradient was.
  size_t last_tensor(size_t bucket) const { return last_tensor_[bucket]; }

 private:
  struct TensorPieces {
    std::vector<size_t> buckets, ends;  // of each piece: its bucket, its last element
    size_t final = 0;                   // pieces of this step
    size_t reported = 0;                // elements of this step
  };

  const BucketLayout& layout_;
  std::vector<TensorPieces> tensors_;
  std::vector<std::vector<size_t>> updated_after_;  // by bucket
  std::vector<size_t> missing_;                     // by bucket: pieces that are not final yet
  std::vector<int64_t> ready_ns_;                   // by bucket
  std::vector<size_t> last_tensor_;                 // by bucket
  size_t next_ = 0;
};

}  // namespace rondo::ddp
