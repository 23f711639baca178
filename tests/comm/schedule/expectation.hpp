// What a collective is to give, said anew and not taken from internal::form_of() and the builders: those are
// what is tested. Data: contribution(rank, position) is a large number, so that sums with a
// missing, doubled or misplaced one differ.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "comm/schedule/verifier.hpp"

namespace rondo::schedule::test {

inline uint64_t contribution(size_t rank, uint64_t position) {
  return (rank * 1000003 + position + 1) * 0x9E3779B97F4A7C15u;
}

/// Of one operation. `finish`: what becomes of a finished sum.
struct Expectation {
  const LoweredOperation& op;
  uint64_t (*finish)(uint64_t sum);

  size_t ranks() const { return op.programs.size(); }
  bool is(std::initializer_list<Collective> any) const {
    return std::find(any.begin(), any.end(), op.collective) != any.end();
  }
  bool gathers_varying() const { return is({Collective::kAllGatherV, Collective::kGatherV}); }
  bool scatters_varying() const { return is({Collective::kReduceScatterV, Collective::kScatterV}); }
  bool one_in() const {
    return is({Collective::kAllGather, Collective::kGather}) || gathers_varying();
  }
  bool one_out() const {
    return is({Collective::kReduceScatter, Collective::kScatter}) || scatters_varying();
  }
  bool exchanges() const { return is({Collective::kAllToAll, Collective::kAllToAllV}); }
  bool blocks() const { return one_in() || one_out() || exchanges(); }

  /// Elements that rank `from` has for rank `to`, and where they begin in its In and in that rank's
  /// Out. Where In or Out is a single block, or undivided, it begins at 0.
  uint64_t count(size_t from, size_t to) const {
    if (gathers_varying()) return op.layouts[0].out_counts[from];
    if (scatters_varying()) return op.layouts[0].in_counts[to];
    if (op.collective == Collective::kAllToAllV) return op.layouts[from].in_counts[to];
    return op.count;
  }
  uint64_t in_offset(size_t from, size_t to) const {
    if (one_in()) return 0;
    const bool varies = scatters_varying() || op.collective == Collective::kAllToAllV;
    return varies ? op.layouts[from].in_offsets[to] : to * op.count;
  }
  uint64_t out_offset(size_t from, size_t to) const {
    if (one_out()) return 0;
    const bool varies = gathers_varying() || op.collective == Collective::kAllToAllV;
    return varies ? op.layouts[to].out_offsets[from] : from * op.count;
  }
  bool reads(size_t rank) const {
    return static_cast<int>(rank) == op.root ||
           !is({Collective::kBroadcast, Collective::kScatter, Collective::kScatterV});
  }
  bool writes(size_t rank) const {
    return static_cast<int>(rank) == op.root ||
           !is({Collective::kReduce, Collective::kGather, Collective::kGatherV});
  }

  /// Elements of a rank's buffers, and where Out and In begin in the one memory of both in place.
  uint64_t in_size(size_t rank) const {
    uint64_t size = blocks() ? 0 : op.programs[0].channels[0].total;
    for (size_t p = 0; blocks() && p < ranks(); ++p)
      size = std::max(size, in_offset(rank, p) + count(rank, p));
    return size;
  }
  uint64_t out_size(size_t rank) const {
    uint64_t size = blocks() ? 0 : op.programs[0].channels[0].total;
    for (size_t p = 0; blocks() && p < ranks(); ++p)
      size = std::max(size, out_offset(p, rank) + count(p, rank));
    return size;
  }
  uint64_t in_base(size_t rank) const {
    return op.in_place && one_in() ? out_offset(rank, rank) : 0;
  }
  uint64_t out_base(size_t rank) const {
    if (!op.in_place) return in_size(rank);
    return one_out() ? in_offset(rank, rank) : 0;
  }

  /// Of the first ranks: what a scan gives, whose sums no step finishes.
  uint64_t sum_before(size_t end, uint64_t position) const {
    uint64_t sum = 0;
    for (size_t r = 0; r < end; ++r) sum += contribution(r, position);
    return sum;
  }
  uint64_t sum(uint64_t position) const { return finish(sum_before(ranks(), position)); }

  /// Element `i` of what `rank` gets from `from`.
  uint64_t expected(size_t from, size_t rank, uint64_t i) const {
    const auto root = static_cast<size_t>(op.root);
    switch (op.collective) {
      case Collective::kBroadcast:
        return contribution(root, i);
      case Collective::kScatter:
      case Collective::kScatterV:
        return contribution(root, in_offset(root, rank) + i);
      case Collective::kAllReduce:
      case Collective::kReduce:
        return sum(i);
      case Collective::kInclusiveScan:
        return sum_before(rank + 1, i);
      case Collective::kExclusiveScan:
        return sum_before(rank, i);
      case Collective::kReduceScatter:
      case Collective::kReduceScatterV:
        return sum(in_offset(from, rank) + i);
      default:
        return contribution(from, in_offset(from, rank) + i);
    }
  }

  /// Whether `out`, what `rank` holds at the end, is right.
  bool right(size_t rank, const uint64_t* out) const {
    if (!writes(rank)) return true;
    const bool undivided = !blocks() || one_out();
    for (size_t from = 0; from < (undivided ? 1 : ranks()); ++from) {
      const uint64_t length = undivided ? out_size(rank) : count(from, rank);
      const uint64_t begin = undivided ? 0 : out_offset(from, rank);
      for (uint64_t i = 0; i < length; ++i) {
        if (out[begin + i] != expected(from, rank, i)) return false;
      }
    }
    return true;
  }
};

}  // namespace rondo::schedule::test
