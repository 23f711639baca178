// Closed-form test data: small positive integers whose every partial result is exact in the data
// type, so that results are compared bit for bit, in any order of reduction. It does not test
// rounding; the kernels' tests do.
//
// A contribution depends on rank and index through a hash. A missing or doubled one changes every
// element of a sum or average, a misplaced one (another rank's, another index') nearly every
// element. Products and extrema cannot show everything at each element: there every rank decides at
// least one element in `ranks`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bench/harness/shape.hpp"

namespace rondo::bench {

/// What every rank passes as its factor to a scaled sum.
inline constexpr double kFactor = 2;

class Pattern {
 public:
  Pattern(const Shape& shape, int ranks);

  /// What `rank` puts at `index` of its input. Never 0, which is what outputs are cleared to.
  uint64_t contribution(int rank, uint64_t index) const;
  /// The fold of all ranks' contributions at `index`.
  uint64_t reduced(uint64_t index) const;
  /// What `rank` must find at `index` of its output.
  uint64_t expected(int rank, uint64_t index) const;

  /// Writes rank's whole input (zeros where only the root has one).
  void fill_input(int rank, void* in) const;
  /// Writes what rank's whole output must be.
  void fill_output(int rank, void* out) const;
  /// Elements of rank's own that are compared.
  size_t in_count(int rank) const;
  size_t out_count(int rank) const;
  /// Number of elements of rank's output, or input, that are not what they must be.
  size_t wrong_output(int rank, const void* out) const;
  size_t wrong_input(int rank, const void* in) const;

 private:
  uint64_t hashed(int rank, uint64_t index) const;
  /// Which block of `rank`'s buffer holds element `index`, and where in it.
  std::pair<size_t, uint64_t> block_of(int rank, uint64_t index) const;

  Shape shape_;
  int ranks_;
  std::vector<std::vector<uint64_t>> ends_;  // [rank][block], of a buffer with a block per rank
  uint64_t range_;                           // hashed values lie in [1, range_]
  uint64_t stride_;  // products: one rank in stride_ contributes something else than 1
};

}  // namespace rondo::bench
