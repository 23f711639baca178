// See layout.hpp.
#include "trainer/ddp/layout.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rondo {

size_t DdpTensor::count() const {
  size_t product = 1;
  for (const size_t extent : shape) product *= extent;
  return product;
}

namespace ddp {
namespace {

using Piece = DdpBucket::Piece;

size_t count_of(const std::vector<Piece>& pieces) {
  size_t count = 0;
  for (const Piece& piece : pieces) count += piece.end - piece.begin;
  return count;
}

bool is_whole(const Piece& piece, const std::vector<DdpTensor>& tensors) {
  return piece.begin == 0 && piece.end == tensors[piece.tensor].count();
}

size_t in_units_of(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }

/// The whole tensor, or panels of rows: the first of at least `first` elements, the others of at
/// least `most`, so that each fills a bucket, and all but the last of a multiple of `unit`.
std::vector<Piece> pieces_of(const DdpTensor& tensor, size_t index, size_t first, size_t most,
                             size_t unit) {
  const size_t count = tensor.count();
  if (most == 0 || count <= most) return {{.tensor = index, .begin = 0, .end = count}};
  const size_t row = std::lcm(count / tensor.shape[0], unit);
  const auto panel = [row](size_t least) { return (least + row - 1) / row * row; };
  std::vector<Piece> pieces;
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    end = std::min(begin + panel(begin == 0 ? first : most), count);
    pieces.push_back({.tensor = index, .begin = begin, .end = end});
  }
  return pieces;
}

/// Moves the end of the last group, as much as is small, into a group of its own.
void split_small_end(std::vector<std::vector<Piece>>& groups, size_t small) {
  std::vector<Piece>& last = groups.back();
  if (count_of(last) <= small) return;
  size_t keep = last.size() - 1;
  while (keep > 0 &&
         count_of({last.begin() + static_cast<ptrdiff_t>(keep) - 1, last.end()}) <= small) {
    --keep;
  }
  if (keep == 0) return;
  std::vector<Piece> end(last.begin() + static_cast<ptrdiff_t>(keep), last.end());
  last.resize(keep);
  groups.push_back(std::move(end));
}

/// Closes the last group before a tensor that is about to be added, and begins the next one with the small
/// tensors before it: a layer's bias is final together with its weight.
void close_before_next(std::vector<std::vector<Piece>>& groups,
                       const std::vector<DdpTensor>& tensors, size_t most) {
  constexpr size_t kSmallShare = 16;
  std::vector<Piece>& last = groups.back();
  size_t kept = last.size(), moved = 0;
  while (kept > 1 && is_whole(last[kept - 1], tensors)) {
    moved += last[kept - 1].end;
    if (moved > most / kSmallShare) break;
    --kept;
  }
  std::vector<Piece> next(last.begin() + static_cast<ptrdiff_t>(kept), last.end());
  last.resize(kept);
  groups.push_back(std::move(next));
}

constexpr size_t kAlignedBytes = 64;  // bytes

/// How large buckets are, in elements of a type.
struct Cap {
  size_t most, small;
  size_t unit;  // each is a multiple of it; 1: any
};
Cap cap_of(const BucketCaps& caps, size_t element_bytes) {
  const size_t most = caps.bytes / element_bytes;
  return {.most = most,
          .small = std::min(most, caps.small_bytes / element_bytes),
          .unit = caps.blocks == 1 ? 1 : caps.blocks * kAlignedBytes / element_bytes};
}

size_t element_bytes_of(const DdpTensor& tensor, size_t otherwise) {
  return tensor.type ? size_of(*tensor.type) : otherwise;
}

std::vector<std::vector<Piece>> group(const std::vector<DdpTensor>& tensors, size_t element_bytes,
                                      const BucketCaps& caps) {
  std::vector<std::vector<Piece>> groups;
  bool open = false;
  Cap cap{};
  for (size_t t = 0; t < tensors.size() && tensors[t].adds_to < 0; ++t) {
    cap = cap_of(caps, element_bytes_of(tensors[t], element_bytes));
    if (t > 0 && tensors[t].type != tensors[t - 1].type) open = false;
    const std::vector<Piece> pieces =
        pieces_of(tensors[t], t, t == 0 ? cap.small : cap.most, cap.most, cap.unit);
    // Nothing can be inserted between panels, so what ends with one begins with one.
    if (caps.blocks > 1 && pieces.size() > 1) open = false;
    for (const Piece& piece : pieces) {
      const size_t with = open ? count_of(groups.back()) + piece.end - piece.begin : 0;
      // The first bucket takes what it gets: it is small.
      if (with > cap.most && groups.size() > 1 &&
          with - cap.most > cap.most - count_of(groups.back())) {
        close_before_next(groups, tensors, cap.most);
      }
      if (!open) groups.emplace_back();
      groups.back().push_back(piece);
      open = count_of(groups.back()) < (groups.size() == 1 ? cap.small : cap.most);
    }
  }
  if (!groups.empty() && cap.most != 0) split_small_end(groups, cap.small);
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].adds_to < 0) continue;
    groups.push_back({{.tensor = t, .begin = 0, .end = tensors[t].count()}});
  }
  return groups;
}

/// Where tensors lie, without buckets: each from a multiple of 64 bytes.
BucketLayout lay_tensors(const std::vector<DdpTensor>& tensors, size_t element_bytes) {
  BucketLayout layout;
  for (const DdpTensor& tensor : tensors) {
    const size_t each = element_bytes_of(tensor, element_bytes);
    const size_t count = in_units_of(tensor.count(), kAlignedBytes / each);
    layout.offsets.push_back(layout.gradient_elements);
    layout.byte_offsets.push_back(layout.gradient_bytes);
    layout.gradient_elements += count;
    layout.gradient_bytes += count * each;
    if (tensor.adds_to >= 0) continue;
    layout.parameter_elements = layout.gradient_elements;
    layout.parameter_bytes = layout.gradient_bytes;
  }
  return layout;
}

/// Where the next piece of the flat storage begins: padding after a tensor's end belongs to the
/// bucket that holds that end.
size_t end_of(const Piece& piece, const std::vector<DdpTensor>& tensors,
              const BucketLayout& layout) {
  if (piece.end != tensors[piece.tensor].count()) return layout.offsets[piece.tensor] + piece.end;
  return piece.tensor + 1 < tensors.size() ? layout.offsets[piece.tensor + 1]
                                           : layout.gradient_elements;
}

size_t bytes_before(const Piece& piece, const std::vector<DdpTensor>& tensors, size_t element_bytes,
                    const BucketLayout& layout) {
  return layout.byte_offsets[piece.tensor] +
         piece.begin * element_bytes_of(tensors[piece.tensor], element_bytes);
}

/// All that lies after this tensor lies so much later. REQUIRES: no tensor adds to another.
void insert_after(size_t tensor, size_t elements, size_t bytes, BucketLayout& layout) {
  for (size_t t = tensor + 1; t < layout.offsets.size(); ++t) {
    layout.offsets[t] += elements;
    layout.byte_offsets[t] += bytes;
  }
  layout.parameter_elements = layout.gradient_elements += elements;
  layout.parameter_bytes = layout.gradient_bytes += bytes;
}

}  // namespace

BucketLayout make_layout(const std::vector<DdpTensor>& tensors, size_t element_bytes,
                         const BucketCaps& caps) {
  BucketLayout layout = lay_tensors(tensors, element_bytes);
  size_t offset = 0;
  for (std::vector<Piece>& pieces : group(tensors, element_bytes, caps)) {
    const size_t tensor = pieces.back().tensor;
    if (caps.blocks > 1 && pieces.back().end == tensors[tensor].count()) {
      const size_t each = element_bytes_of(tensors[tensor], element_bytes);
      const size_t count = end_of(pieces.back(), tensors, layout) - offset;
      const size_t more = in_units_of(count, cap_of(caps, each).unit) - count;
      insert_after(tensor, more, more * each, layout);
    }
    const size_t end = end_of(pieces.back(), tensors, layout);
    const size_t byte_offset = bytes_before(pieces.front(), tensors, element_bytes, layout);
    layout.buckets.push_back({.pieces = std::move(pieces),
                              .offset = offset,
                              .count = end - offset,
                              .byte_offset = byte_offset});
    offset = end;
  }
  return layout;
}

size_t row_elements(const DdpTensor& tensor) {
  return tensor.shape.size() < 2 || tensor.count() == 0 ? 1 : tensor.count() / tensor.shape[0];
}

std::optional<BucketLayout> layout_with_ends(const std::vector<DdpTensor>& tensors,
                                             size_t element_bytes,
                                             const std::vector<size_t>& ends) {
  BucketLayout layout = lay_tensors(tensors, element_bytes);
  Piece piece{.tensor = 0, .begin = 0, .end = 0};
  size_t offset = 0;
  for (const size_t end : ends) {
    if (end <= offset) return std::nullopt;
    if (piece.tensor == tensors.size()) return std::nullopt;
    DdpBucket bucket{.pieces = {},
                     .offset = offset,
                     .count = end - offset,
                     .byte_offset = bytes_before(piece, tensors, element_bytes, layout)};
    const std::optional<DataType> type = tensors[piece.tensor].type;
    while (offset < end) {
      if (piece.tensor == tensors.size() || tensors[piece.tensor].type != type) return std::nullopt;
      const size_t begins = layout.offsets[piece.tensor], count = tensors[piece.tensor].count();
      piece.end = std::min(end - begins, count);
      if (piece.end != count && piece.end % row_elements(tensors[piece.tensor]) != 0) {
        return std::nullopt;
      }
      bucket.pieces.push_back(piece);
      offset = end_of(piece, tensors, layout);
      if (offset > end || (tensors[piece.tensor].adds_to >= 0 &&
                           (piece.end != count || bucket.pieces.size() > 1))) {
        return std::nullopt;
      }
      piece.begin = piece.end;
      if (piece.end == count) piece = {.tensor = piece.tensor + 1, .begin = 0, .end = 0};
    }
    layout.buckets.push_back(std::move(bucket));
  }
  if (offset != layout.gradient_elements) return std::nullopt;
  return layout;
}

std::vector<size_t> ends_of(const BucketLayout& layout) {
  std::vector<size_t> ends;
  for (const DdpBucket& bucket : layout.buckets) ends.push_back(bucket.offset + bucket.count);
  return ends;
}

}  // namespace ddp
}  // namespace rondo
