// See symbolic_values.hpp.
#include "comm/schedule/symbolic_values.hpp"

#include <bit>

namespace rondo::schedule {
namespace {

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 29)) * 0xD6E8FEB86659FD93u;
  return x ^ (x >> 32);
}
uint64_t leaf_order(int rank) { return mix(static_cast<uint64_t>(rank) + 1); }
uint64_t identity_order() { return mix(0xA0761D6478BD642Fu); }
uint64_t fold_order(uint64_t a, uint64_t b) { return mix(a * 3 + mix(b) + 0x51ED270Bu); }

}  // namespace

Values::Values(int ranks)
    : ranks_(ranks),
      words_((static_cast<size_t>(ranks) + 63) / 64),
      rank_orders_{identity_order(), leaf_order(0)} {
  for (int r = 1; r < ranks; ++r) {
    rank_orders_.push_back(fold_order(rank_orders_.back(), leaf_order(r)));
  }
}

ValueId Values::leaf(int rank, int chunk) {
  values_.push_back({chunk, false, leaf_order(rank), members_.size()});
  members_.resize(members_.size() + words_, 0);
  members_[members_.size() - words_ + static_cast<size_t>(rank) / 64] |= uint64_t{1} << (rank % 64);
  return static_cast<ValueId>(values_.size() - 1);
}

ValueId Values::identity(int chunk) {
  values_.push_back({chunk, false, identity_order(), members_.size()});
  members_.resize(members_.size() + words_, 0);
  return static_cast<ValueId>(values_.size() - 1);
}

ValueId Values::fold(ValueId a, ValueId b, int* overlap) {
  for (size_t w = 0; w < words_; ++w) {
    const uint64_t both = bits(a)[w] & bits(b)[w];
    if (both != 0) {
      *overlap = static_cast<int>(w) * 64 + std::countr_zero(both);
      return kNothing;
    }
  }
  values_.push_back({chunk(a), false, fold_order(order(a), order(b)), members_.size()});
  const auto v = static_cast<ValueId>(values_.size() - 1);
  members_.resize(members_.size() + words_);
  for (size_t w = 0; w < words_; ++w) {
    members_[values_.back().bits + w] = bits(a)[w] | bits(b)[w];
  }
  return v;
}

ValueId Values::finish(ValueId v) {
  Value value = values_[static_cast<size_t>(v)];
  value.finished = true;
  values_.push_back(value);
  return static_cast<ValueId>(values_.size() - 1);
}

int Values::missing(ValueId v) const {
  for (size_t w = 0; w < words_; ++w) {
    const int absent = std::countr_one(bits(v)[w]);
    const int rank = static_cast<int>(w) * 64 + absent;
    if (absent < 64) return rank < ranks_ ? rank : -1;
  }
  return -1;
}

int Values::last(ValueId v) const {
  for (size_t w = words_; w-- > 0;) {
    if (bits(v)[w] != 0) return static_cast<int>(w) * 64 + 63 - std::countl_zero(bits(v)[w]);
  }
  return -1;
}

bool Values::only(ValueId v, int rank) const {
  int members = 0;
  for (size_t w = 0; w < words_; ++w) members += std::popcount(bits(v)[w]);
  return members == 1 && holds(v, rank);
}

}  // namespace rondo::schedule
