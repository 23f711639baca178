// A global batch on its way from one rank to all: each rank's samples as one block of bytes, all
// blocks of one size, as scatter needs them. Copies; sends nothing.
#pragma once

#include <vector>

#include "trainer/data/dataset.hpp"
#include "trainer/model.hpp"

namespace rondo::trainer {

/// One block: words {samples, loss terms of all ranks}, then room for `batch` samples' ids, tokens,
/// targets, images.
class ShareFormat {
 public:
  ShareFormat(const SampleShape& shape, size_t batch) : shape_(shape), batch_(batch) {}

  size_t bytes() const {
    return kWords * sizeof(uint64_t) + batch_ * (sizeof(uint64_t) + sample_bytes());
  }
  /// REQUIRES: batch.size is at most the format's.
  void pack(const Batch& batch, std::byte* block) const;
  void set_all_terms(uint64_t terms, std::byte* block) const;
  /// Borrows the block, which must be aligned for uint64_t.
  Batch unpack(const std::byte* block) const;
  uint64_t all_terms(const std::byte* block) const;

 private:
  static constexpr size_t kWords = 2;
  size_t sample_bytes() const { return 4 * (shape_.context + shape_.targets + shape_.pixels()); }
  // Where each part begins.
  size_t ids() const { return kWords * sizeof(uint64_t); }
  size_t tokens() const { return ids() + batch_ * sizeof(uint64_t); }
  size_t targets() const { return tokens() + batch_ * shape_.context * sizeof(int32_t); }
  size_t images() const { return targets() + batch_ * shape_.targets * sizeof(int32_t); }

  const SampleShape shape_;
  const size_t batch_;
};

}  // namespace rondo::trainer
