// Where to cut flat gradients into buckets, from the time at which each part is final and the cost
// of an all-reduce: pure functions of integers, so that a rank that decides for all needs no more.
// Measures nothing and knows no ranks. See readiness.hpp for the times, relayout.hpp for the use.
//
// Buckets travel one after the other, in order. One starts when its last gradient is final and the
// one before has ended; where each is updated as soon as it is reduced, later ones travel meanwhile:
//   finish_b = max(ready_b, finish_{b-1}) + cost_b
//   end      = max(backward + all updates, finish_b + the updates from b on, for each b)
// What `end` has more than backward and updates is exposed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace rondo::ddp {

/// Gradients between two places where a bucket may end.
struct BucketUnit {
  size_t end;         // in the flat storage; the next unit begins there
  int64_t ready_ns;   // when all of it is final
  int64_t update_ns;  // what its update takes after its bucket; 0: it waits for more than that
  /// At least 0: it is a bucket by itself, of this cost (a tensor that adds to another).
  int64_t alone_ns = -1;
};

/// A step without its buckets.
struct BucketModel {
  std::vector<BucketUnit> units;  // ascending
  int64_t backward_ns;
  std::function<int64_t(size_t elements)> cost_ns;  // of an all-reduce
};

/// What is exposed with buckets that end there. REQUIRES: each is the end of a unit, ascending, the
/// last unit's included.
int64_t exposed_ns(const BucketModel& model, const std::vector<size_t>& ends);

struct BucketPlan {
  std::vector<size_t> ends;
  int64_t exposed_ns;
};

/// No finer claim than the model: as much more is not noticeably more than `least_ns` exposed.
int64_t noticeable_ns(const BucketModel& model, int64_t least_ns);

/// The fewest buckets that expose not noticeably more than the least possible, and with that many
/// buckets the least. At most kMostBuckets, apart from units that are alone. REQUIRES: a unit.
BucketPlan cut_buckets(const BucketModel& model);
inline constexpr size_t kMostBuckets = 64;

/// What kDdpAutoCap chooses.
struct ChosenEnds {
  std::vector<size_t> ends;
  int64_t exposed_before_ns = 0, exposed_ns = 0;
};
/// cut_buckets() for transfers that take half as long again as `model` says, since what ends in
/// backward's last moment is exposed in every step in which either is a little different. `present`
/// stays where that would not gain noticeably.
ChosenEnds choose_ends(const BucketModel& model, const std::vector<size_t>& present);

/// The cost of an all-reduce: predicted at some sizes, linear between them, corrected by what was
/// measured.
class CostCurve {
 public:
  struct PricedSize {
    size_t elements;
    double predicted_ns;
  };
  /// REQUIRES: at least one point, ascending.
  explicit CostCurve(std::vector<PricedSize> points) : points_(std::move(points)) {}

  double predicted_ns(size_t elements) const;
  /// Fits measured = offset + ratio x predicted by least squares, neither of them negative. `measured`:
  /// elements and nanoseconds. Without a measurement the prediction stays.
  void correct(const std::vector<std::pair<size_t, int64_t>>& measured);
  int64_t operator()(size_t elements) const;

 private:
  std::vector<PricedSize> points_;
  double offset_ns_ = 0, ratio_ = 1;
};

}  // namespace rondo::ddp
