// See order.hpp.
#include "trainer/ddp/order.hpp"

#include <algorithm>
#include <numeric>

namespace rondo::ddp {

BucketOrder::BucketOrder(const std::vector<DdpTensor>& tensors, const BucketLayout& layout,
                         bool update_each)
    : layout_(layout),
      tensors_(tensors.size()),
      updated_after_(layout.buckets.size()),
      missing_(layout.buckets.size()),
      ready_ns_(layout.buckets.size()),
      last_tensor_(layout.buckets.size()) {
  const size_t buckets = layout.buckets.size();
  for (size_t b = 0; b < buckets; ++b) {
    for (const DdpBucket::Piece& piece : layout.buckets[b].pieces) {
      tensors_[piece.tensor].buckets.push_back(b);
      tensors_[piece.tensor].ends.push_back(piece.end);
    }
  }
  std::vector<size_t> after(buckets, buckets - 1);
  if (update_each) std::iota(after.begin(), after.end(), size_t{0});
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].adds_to < 0) continue;
    for (const size_t b : tensors_[static_cast<size_t>(tensors[t].adds_to)].buckets) {
      after[b] = std::max(after[b], tensors_[t].buckets.back());
    }
  }
  for (size_t b = 0; b < buckets; ++b) updated_after_[after[b]].push_back(b);
}

void BucketOrder::begin() {
  for (TensorPieces& tensor : tensors_) tensor.final = tensor.reported = 0;
  for (size_t b = 0; b < missing_.size(); ++b) missing_[b] = layout_.buckets[b].pieces.size();
  next_ = 0;
}

std::optional<std::span<const size_t>> BucketOrder::mark_final(size_t tensor, size_t count,
                                                               int64_t now_ns) {
  TensorPieces& pieces = tensors_[tensor];
  const size_t first = pieces.final;
  if (count > 0 && count <= pieces.reported) return std::nullopt;
  pieces.reported = std::max(pieces.reported, count);
  for (; pieces.final < pieces.ends.size() && pieces.ends[pieces.final] <= count; ++pieces.final) {
    const size_t bucket = pieces.buckets[pieces.final];
    if (--missing_[bucket] != 0) continue;
    ready_ns_[bucket] = now_ns;
    last_tensor_[bucket] = tensor;
  }
  return std::span<const size_t>(pieces.buckets).subspan(first, pieces.final - first);
}

std::optional<size_t> BucketOrder::take_next() {
  if (next_ == missing_.size() || missing_[next_] != 0) return std::nullopt;
  return next_++;
}

std::vector<size_t> BucketOrder::unfinished() const {
  std::vector<size_t> tensors;
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].final < tensors_[t].ends.size()) tensors.push_back(t);
  }
  return tensors;
}

}  // namespace rondo::ddp
