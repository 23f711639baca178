// See memory.hpp.
#include "trainer/ddp/memory.hpp"

#include <algorithm>
#include <cstdint>

#include "rondo/memory.hpp"

namespace rondo::ddp {
namespace {

constexpr size_t kLine = 64;  // bytes

bool is_added_to(const std::vector<DdpTensor>& tensors, size_t tensor) {
  return std::any_of(tensors.begin(), tensors.end(), [tensor](const DdpTensor& other) {
    return other.adds_to == static_cast<int>(tensor);
  });
}

size_t bytes_of(const DdpTensor& tensor) { return tensor.count() * size_of(*tensor.type); }

}  // namespace

ParameterMemory::ParameterMemory(std::vector<DdpTensor>& tensors, const BucketLayout& layout,
                                 Gpu* gpu)
    : tensors_(tensors),
      callers_(!tensors.empty() && tensors[0].data != nullptr),
      storage_(gpu, callers_ ? 0 : layout.parameter_bytes) {
  for (size_t t = 0; t < tensors.size() && !callers_; ++t) {
    if (tensors[t].adds_to < 0) tensors[t].data = storage_.data() + layout.byte_offsets[t];
  }
}

Status ParameterMemory::replicate(Communicator& communicator, const CallOptions& call) {
  const auto send = [&](void* data, size_t bytes) {
    return communicator.broadcast(data, data, bytes, DataType::kUint8, 0, call);
  };
  if (!callers_) return storage_.bytes() == 0 ? Status() : send(storage_.data(), storage_.bytes());
  for (const DdpTensor& tensor : tensors_) {
    if (tensor.adds_to < 0) RONDO_TRY(send(tensor.data, bytes_of(tensor)));
  }
  return {};
}

BufferMemory::BufferMemory(std::vector<DdpTensor>& buffers, const BucketLayout& layout, Gpu* gpu)
    : buffers_(buffers),
      layout_(layout),
      gpu_(gpu),
      callers_(!buffers.empty() && buffers[0].data != nullptr),
      storage_(gpu, layout.gradient_bytes) {
  for (size_t b = 0; b < buffers.size() && !callers_; ++b) {
    buffers[b].data = storage_.data() + layout.byte_offsets[b];
  }
}

void BufferMemory::copy_in() {
  for (size_t b = 0; b < buffers_.size() && callers_; ++b) {
    ddp::copy(gpu_, storage_.data() + layout_.byte_offsets[b], buffers_[b].data,
              bytes_of(buffers_[b]));
  }
}

void BufferMemory::copy_out() {
  for (size_t b = 0; b < buffers_.size() && callers_; ++b) {
    ddp::copy(gpu_, buffers_[b].data, storage_.data() + layout_.byte_offsets[b],
              bytes_of(buffers_[b]));
  }
}

GradientMemory::GradientMemory(std::vector<DdpTensor>& tensors, const BucketLayout& layout,
                               Gpu* gpu, bool stays)
    : tensors_(tensors),
      layout_(layout),
      gpu_(gpu),
      callers_(!tensors.empty() && tensors[0].gradient != nullptr),
      storage_(gpu, needed_bytes(stays)) {
  for (size_t t = 0; t < tensors.size() && !callers_; ++t) tensors[t].gradient = tensor(t);
  buckets_ = places_in(layout);
}

std::vector<std::byte*> GradientMemory::places_in(const BucketLayout& layout) {
  std::vector<std::byte*> places;
  for (const DdpBucket& bucket : layout.buckets) places.push_back(place_of(bucket));
  return places;
}

/// A GPU has memory only for what does not lie as a bucket does; the host's, unless it is touched,
/// costs nothing.
size_t GradientMemory::needed_bytes(bool stays) const {
  const auto lies = [this](const DdpBucket& bucket) { return lies_like(bucket); };
  const bool none = gpu_ != nullptr && callers_ && stays &&
                    std::all_of(layout_.buckets.begin(), layout_.buckets.end(), lies);
  return none ? 0 : layout_.gradient_bytes;
}

/// The caller's memory where its tensors lie as in the bucket, else storage.
std::byte* GradientMemory::place_of(const DdpBucket& bucket) {
  return lies_like(bucket) ? callers(bucket.pieces.front()) : storage_.data() + bucket.byte_offset;
}

/// Whether the gradients lie as in the bucket. A tensor with a second gradient, which may have several
/// buckets, lies in storage as a whole.
bool GradientMemory::lies_like(const DdpBucket& bucket) const {
  std::byte* const here = callers(bucket.pieces.front());
  size_t elements = 0;
  bool same = reinterpret_cast<uintptr_t>(here) % kLine == 0;
  for (const DdpBucket::Piece& piece : bucket.pieces) {
    same = same && tensors_[piece.tensor].adds_to < 0 && !is_added_to(tensors_, piece.tensor) &&
           callers(piece) == here + offset_in(bucket, piece);
    elements += piece.end - piece.begin;
  }
  const size_t bytes = elements * size_of(*tensors_[bucket.pieces.front().tensor].type);
  return same && elements == bucket.count && (gpu_ != nullptr || is_library_memory(here, bytes));
}

std::byte* GradientMemory::callers(const DdpBucket::Piece& piece) const {
  const DdpTensor& tensor = tensors_[piece.tensor];
  return bytes_at(tensor.gradient, piece.begin * size_of(*tensor.type));
}

/// In bytes.
size_t GradientMemory::offset_in(const DdpBucket& bucket, const DdpBucket::Piece& piece) const {
  return layout_.byte_offsets[piece.tensor] + piece.begin * size_of(*tensors_[piece.tensor].type) -
         bucket.byte_offset;
}

void GradientMemory::copy(size_t bucket, const DdpBucket::Piece& piece, bool in) {
  std::byte* const there = buckets_[bucket] + offset_in(layout_.buckets[bucket], piece);
  std::byte* const here = callers(piece);
  if (here == there) return;
  ddp::copy(gpu_, in ? there : here, in ? here : there,
            (piece.end - piece.begin) * size_of(*tensors_[piece.tensor].type));
}

void GradientMemory::copy_in(size_t bucket, size_t tensor) {
  if (!callers_) return;
  for (const DdpBucket::Piece& piece : layout_.buckets[bucket].pieces) {
    if (piece.tensor == tensor) copy(bucket, piece, true);
  }
}

void GradientMemory::copy_out(size_t bucket) {
  if (!callers_) return;
  for (const DdpBucket::Piece& piece : layout_.buckets[bucket].pieces) copy(bucket, piece, false);
}

}  // namespace rondo::ddp
