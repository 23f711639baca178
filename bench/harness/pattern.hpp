// Closed-form test data: small positive integers of which every partial result is exact in the data
// type, so results are compared bit for bit, in any order of reduction. Rounding is not tested
// here; the kernels' tests do that.
//
// A contribution is a hash of rank and index. A missing or doubled contribution changes every
// element of a sum or average, a misplaced one (of another rank or index) nearly every element.
// Products and extrema cannot show every fault at each element: there every rank decides at least
// one element in `ranks`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/harness/shape.hpp"

namespace rondo::bench {

/// Every rank's factor in a scaled sum.
inline constexpr double kFactor = 2;

class Pattern {
 public:
  Pattern(const CallShape& shape, int ranks);

  /// Element `index` of `rank`'s input. Never 0, the value of cleared outputs.
  uint64_t contribution(int rank, uint64_t index) const;
  /// The fold of all ranks' contributions at `index`.
  uint64_t reduced(uint64_t index) const { return reduced(index, ranks_); }
  /// Expected element `index` of `rank`'s output, where fills() is false.
  uint64_t expected(int rank, uint64_t index) const;

  /// Writes rank's whole input (zeros where only the root has one).
  void fill_input(int rank, void* in) const;
  /// Writes rank's whole expected output.
  void fill_output(int rank, void* out) const;
  /// Number of elements of rank's buffer that are compared.
  size_t in_count(int rank) const;
  size_t out_count(int rank) const;
  /// Number of wrong elements in rank's output, or input.
  size_t wrong_output(int rank, const void* out) const;
  size_t wrong_input(int rank, const void* in) const;

 private:
  uint64_t hashed(int rank, uint64_t index) const;
  /// The fold of the first ranks' contributions.
  uint64_t reduced(uint64_t index, int ranks) const;
  /// Whether `rank`'s output is the operator's identity, which may be no integer.
  bool fills(int rank) const {
    return reduces(shape_.collective) &&
           internal::contributors(shape_.collective, rank, ranks_) == 0;
  }
  /// The block of `rank`'s buffer that holds element `index`, and the offset in it.
  std::pair<size_t, uint64_t> block_of(int rank, uint64_t index) const;

  CallShape shape_;
  int ranks_;
  std::vector<std::vector<uint64_t>> ends_;  // [rank][block], of a buffer with a block per rank
  uint64_t range_;                           // hashed values lie in [1, range_]
  uint64_t stride_;  // products: one rank in stride_ contributes another value than 1
};

}  // namespace rondo::bench
