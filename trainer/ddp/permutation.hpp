// An order of samples that looks random, without a table. Knows no ranks.
#pragma once

#include <cstdint>

namespace rondo::ddp {

/// A bijection of [0, size) chosen by `key`, in constant memory: a Feistel network over the next
/// power of four, walked until it lands inside (Black and Rogaway 2002). A table would need 8 bytes
/// per sample on every rank.
class Permutation {
 public:
  /// REQUIRES: 1 <= size <= 2^62.
  Permutation(uint64_t size, uint64_t key);
  /// REQUIRES: i < size.
  uint64_t operator()(uint64_t i) const;

 private:
  uint64_t size_, key_, half_mask_;
  int half_bits_;
};

}  // namespace rondo::ddp
