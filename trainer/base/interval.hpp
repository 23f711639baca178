// A stretch of time on this rank, and what others leave of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rondo::trainer {

/// CLOCK_MONOTONIC nanoseconds.
struct Interval {
  int64_t begin_ns = 0, end_ns = 0;

  int64_t ns() const { return end_ns - begin_ns; }
  bool operator==(const Interval&) const = default;
};

/// How long these had in common with [begin_ns, end_ns).
inline int64_t within(const std::vector<Interval>& intervals, int64_t begin_ns, int64_t end_ns) {
  int64_t ns = 0;
  for (const Interval& i : intervals) {
    ns += std::max<int64_t>(0, std::min(end_ns, i.end_ns) - std::max(begin_ns, i.begin_ns));
  }
  return ns;
}

inline int64_t sum_ns(const std::vector<Interval>& intervals) {
  int64_t ns = 0;
  for (const Interval& i : intervals) ns += i.ns();
  return ns;
}

/// What is left of `whole` without `busy`, whose intervals have nothing in common and come in any
/// order.
inline std::vector<Interval> without(const Interval& whole, std::vector<Interval> busy) {
  std::sort(busy.begin(), busy.end(),
            [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Interval> left;
  int64_t from = whole.begin_ns;
  for (const Interval& i : busy) {
    if (i.end_ns <= from || i.begin_ns >= whole.end_ns) continue;
    if (i.begin_ns > from) left.push_back({from, i.begin_ns});
    from = i.end_ns;
  }
  if (from < whole.end_ns) left.push_back({from, whole.end_ns});
  return left;
}

}  // namespace rondo::trainer
