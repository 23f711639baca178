// Where a model's parameters, gradients and buffers lie: in the caller's memory, or in flat storage.
// Knows no ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/base/buffer.hpp"
#include "trainer/ddp/layout.hpp"

namespace rondo::ddp {

inline std::byte* bytes_at(void* memory, size_t offset) {
  return static_cast<std::byte*>(memory) + offset;
}

/// Points each parameter without `data` to its place in storage of its own. Borrows its arguments.
class ParameterMemory {
 public:
  ParameterMemory(std::vector<DdpTensor>& tensors, const BucketLayout& layout);

  bool is_callers() const { return callers_; }
  std::byte* flat() { return callers_ ? nullptr : storage_.data(); }
  /// Copies rank 0's to every rank.
  Status replicate(Communicator& communicator);

 private:
  const std::vector<DdpTensor>& tensors_;
  const bool callers_;
  trainer::Buffer<std::byte> storage_;
};

/// The same for buffers, which travel together. Borrows its arguments.
class BufferMemory {
 public:
  BufferMemory(std::vector<DdpTensor>& buffers, const BucketLayout& layout);

  bool empty() const { return storage_.bytes() == 0; }
  /// Starts to copy a rank's to all. REQUIRES: !empty().
  Work send(Communicator& communicator, int root);
  /// Call when that has ended well.
  void receive();

 private:
  const std::vector<DdpTensor>& buffers_;
  const BucketLayout& layout_;
  const bool callers_;
  trainer::Buffer<std::byte> storage_;
};

/// Gradients. Points each tensor without `gradient` to its place in the buckets, which are storage
/// of its own. What lies elsewhere is copied. Borrows its arguments.
class GradientMemory {
 public:
  GradientMemory(std::vector<DdpTensor>& tensors, const BucketLayout& layout);

  /// Where the buckets of a layout of as many bytes are reduced; from the next step on there.
  std::vector<std::byte*> places_in(const BucketLayout& layout);
  void swap_places(std::vector<std::byte*>& other) { buckets_.swap(other); }
  bool is_callers() const { return callers_; }
  std::byte* flat() { return callers_ ? nullptr : storage_.data(); }
  /// Where the bucket is reduced; where the tensor is, once all its buckets are.
  std::byte* bucket(size_t index) const { return buckets_[index]; }
  std::byte* tensor(size_t index) { return storage_.data() + layout_.byte_offsets[index]; }
  /// The bucket's piece of that tensor, to the bucket; all pieces of the bucket, from it.
  void copy_in(size_t bucket, size_t tensor);
  void copy_out(size_t bucket);

 private:
  std::byte* place_of(const DdpBucket& bucket);
  std::byte* callers(const DdpBucket::Piece& piece) const;
  size_t offset_in(const DdpBucket& bucket, const DdpBucket::Piece& piece) const;
  void copy(size_t bucket, const DdpBucket::Piece& piece, bool in);

  const std::vector<DdpTensor>& tensors_;
  const BucketLayout& layout_;
  const bool callers_;
  trainer::Buffer<std::byte> storage_;
  std::vector<std::byte*> buckets_;
};

}  // namespace rondo::ddp
