// Where a model's parameters, gradients and buffers lie: in the caller's memory, or in flat storage;
// on the host, or on a GPU. Knows no ranks.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "rondo/communicator.hpp"
#include "rondo/ddp.hpp"
#include "trainer/base/buffer.hpp"
#include "trainer/ddp/gpu.hpp"
#include "trainer/ddp/layout.hpp"

namespace rondo::ddp {

inline std::byte* bytes_at(void* memory, size_t offset) {
  return static_cast<std::byte*>(memory) + offset;
}

/// Zeroed bytes of the host, or of `gpu` if it is not null, which keeps them.
class FlatMemory {
 public:
  FlatMemory(Gpu* gpu, size_t bytes)
      : bytes_(bytes),
        host_(gpu == nullptr ? bytes : 0),
        data_(gpu == nullptr ? host_.data() : gpu->allocate(bytes)) {}
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  size_t bytes_;
  trainer::Buffer<std::byte> host_;
  std::byte* data_;
};

/// Points each parameter without `data` to its place in storage of its own. Borrows its arguments.
class ParameterMemory {
 public:
  ParameterMemory(std::vector<DdpTensor>& tensors, const BucketLayout& layout, Gpu* gpu);

  bool is_callers() const { return callers_; }
  std::byte* flat() { return callers_ ? nullptr : storage_.data(); }
  /// What is not the caller's.
  std::span<std::byte> own() const { return storage_.span(); }
  /// Copies rank 0's to every rank.
  Status replicate(Communicator& communicator, const CallOptions& call);

 private:
  const std::vector<DdpTensor>& tensors_;
  const bool callers_;
  FlatMemory storage_;
};

/// The same for buffers, which travel together. Borrows its arguments.
class BufferMemory {
 public:
  BufferMemory(std::vector<DdpTensor>& buffers, const BucketLayout& layout, Gpu* gpu);

  bool empty() const { return storage_.bytes() == 0; }
  /// Where they travel.
  void* data() { return storage_.data(); }
  size_t bytes() const { return storage_.bytes(); }
  /// From the caller's memory to there, and back.
  void copy_in();
  void copy_out();

 private:
  const std::vector<DdpTensor>& buffers_;
  const BucketLayout& layout_;
  Gpu* const gpu_;
  const bool callers_;
  FlatMemory storage_;
};

/// Gradients. Points each tensor without `gradient` to its place in the buckets, which are storage
/// of its own. What lies elsewhere is copied. Borrows its arguments.
class GradientMemory {
 public:
  /// `stays`: there will be no other layout.
  GradientMemory(std::vector<DdpTensor>& tensors, const BucketLayout& layout, Gpu* gpu, bool stays);

  /// Where the buckets of a layout of as many bytes are reduced; from the next step on there.
  std::vector<std::byte*> places_in(const BucketLayout& layout);
  void swap_places(std::vector<std::byte*>& other) { buckets_.swap(other); }
  bool is_callers() const { return callers_; }
  std::byte* flat() { return callers_ ? nullptr : storage_.data(); }
  /// What is not the caller's.
  std::span<std::byte> own() const { return storage_.span(); }
  /// Where the bucket is reduced; where the tensor is, once all its buckets are.
  std::byte* bucket(size_t index) const { return buckets_[index]; }
  std::byte* tensor(size_t index) { return storage_.data() + layout_.byte_offsets[index]; }
  /// The bucket's piece of that tensor, to the bucket; all pieces of the bucket, from it.
  void copy_in(size_t bucket, size_t tensor);
  void copy_out(size_t bucket);

 private:
  std::byte* place_of(const DdpBucket& bucket);
  bool lies_like(const DdpBucket& bucket) const;
  size_t needed_bytes(bool stays) const;
  std::byte* callers(const DdpBucket::Piece& piece) const;
  size_t offset_in(const DdpBucket& bucket, const DdpBucket::Piece& piece) const;
  void copy(size_t bucket, const DdpBucket::Piece& piece, bool in);

  const std::vector<DdpTensor>& tensors_;
  const BucketLayout& layout_;
  Gpu* const gpu_;
  const bool callers_;
  FlatMemory storage_;
  std::vector<std::byte*> buckets_;
};

}  // namespace rondo::ddp
