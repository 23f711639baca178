// Symbolic values: which ranks' contributions a piece of data holds, of which chunk, folded in
// which order. Internal to the verifier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rondo::schedule {

/// A value by number; copies share it. kNothing: memory nobody has written.
using ValueId = int32_t;
inline constexpr ValueId kNothing = -1;

/// All values of one execution. Not thread-safe.
class Values {
 public:
  explicit Values(int ranks);

  /// What `rank` contributes to `chunk`.
  ValueId leaf(int rank, int chunk);

  /// No contribution: the operator's identity.
  ValueId identity(int chunk);

  /// a, then b. kNothing when both hold a contribution of `overlap`.
  ValueId fold(ValueId a, ValueId b, int* overlap);

  /// The same value, marked as the finished reduction.
  ValueId finish(ValueId v);

  int chunk(ValueId v) const { return values_[static_cast<size_t>(v)].chunk; }
  bool finished(ValueId v) const { return values_[static_cast<size_t>(v)].finished; }
  /// Equal for equal folds: the same contributions in the same order and grouping.
  uint64_t order(ValueId v) const { return values_[static_cast<size_t>(v)].order; }
  bool holds(ValueId v, int rank) const { return (bits(v)[rank / 64] >> (rank % 64) & 1) != 0; }
  /// The first rank whose contribution is not there; -1 when it is complete.
  int missing(ValueId v) const;
  /// The last rank whose contribution is there; -1 when it holds none.
  int last(ValueId v) const;
  /// Whether it holds `rank`'s contribution and no other.
  bool only(ValueId v, int rank) const;

  /// order() of a fold of the first `count` ranks in rank order 0..count-1.
  uint64_t rank_order(int count) const { return rank_orders_[static_cast<size_t>(count)]; }

 private:
  struct Value {
    int chunk;
    bool finished;
    uint64_t order;
    size_t bits;  // where its words_ words begin in members_
  };
  const uint64_t* bits(ValueId v) const {
    return members_.data() + values_[static_cast<size_t>(v)].bits;
  }

  int ranks_;
  size_t words_;
  std::vector<uint64_t> rank_orders_;  // [ranks folded]
  std::vector<Value> values_;
  std::vector<uint64_t> members_;
};

}  // namespace rondo::schedule
