// Sums in double that a compiler may vectorise although it must not reorder additions.
#pragma once

#include <cstddef>

namespace rondo::trainer {

/// The sum of term(i) over i < count, in eight interleaved parts: their number is fixed here, so
/// the same bits come out wherever the data lies and however wide the vectors are.
template <class Term>
double lane_sum(size_t count, Term term) {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

}  // namespace rondo::trainer
