// What another bucket cap would have cost: the steps of this run, replayed with other buckets. Pure
// functions of measured times and of a price for an all-reduce; measures nothing.
//
// A bucket is launched when it is ready and the one before it has ended; it ends one all-reduce
// later; what ends after backward is exposed:
//   launch_i = max(ready_i, finish_{i-1})     finish_i = launch_i + cost_i
//   exposed  = max(0, finish_last - backward)
// Where each bucket is updated as soon as it is reduced, its update hides the buckets after it.
// With ZeRO-1 the same once more, for the gathers: parameters are ready when their bucket is updated, the
// last bucket first, and what ends after the update and the next samples is exposed, too.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "rondo/types.hpp"

namespace rondo::trainer {

/// The first `count` elements of a gradient were final, this long after backward began.
struct GradientTime {
  size_t tensor, count;
  double ms;
};

struct TimedBucket {
  double ready_ms, cost_ms;
  double update_ms = 0;  // after backward, when it has ended and those before it are updated
};

/// A bucket in the replay, times since backward began.
struct ReplayedBucket {
  double launch_ms, finish_ms;
  double exposed_ms;  // of it, what nothing hides
};
std::vector<ReplayedBucket> replay(const std::vector<TimedBucket>& buckets, double backward_ms);

double exposed_ms(const std::vector<TimedBucket>& buckets, double backward_ms);

/// A step without its buckets.
struct StepModel {
  std::vector<DdpTensor> tensors;
  size_t element_bytes;
  std::vector<GradientTime> ready;  // in any order; what is missing is ready when backward ends
  double backward_ms;
  std::function<double(const DdpBucket&)> cost_ms;
  // With ZeRO-1 only: of a bucket's parameters, 0 where it holds none.
  std::function<double(const DdpBucket&)> gather_cost_ms = nullptr;
  // The optimizer's work: after all buckets with ZeRO-1, else of each after its own, 0 where
  // it waits for all. What the next step waits for samples: with ZeRO-1 only.
  double update_ms = 0, fetch_ms = 0;
};

/// Gradients are ready with the first report that covers them.
double ready_ms(const StepModel& model, const DdpBucket& bucket);
/// What replay() takes, of these buckets.
std::vector<TimedBucket> time_buckets(const StepModel& model,
                                      const std::vector<DdpBucket>& buckets);

struct CapPrediction {
  double cap_mb;
  size_t buckets;
  double exposed_ms;
};

CapPrediction predict_cap(const StepModel& model, double cap_mb);
/// Of buckets that were not made by a cap, whatever it is called.
CapPrediction predict_buckets(const StepModel& model, const std::vector<DdpBucket>& buckets,
                              double cap_mb);

/// Of 0, 0.25, 0.5, 1, 2, 5, 10, 25, 50 and 100 MiB those that are less than all gradients, and of
/// a cap that holds them all, in that order.
std::vector<CapPrediction> predict_caps(const StepModel& model);

/// Whether `a` exposes less, by more than 1 % and 0.5 % of backward: no claim finer than the model.
bool is_better(const CapPrediction& a, const CapPrediction& b, double backward_ms);

/// The largest of the caps that none is better than: fewest all-reduces.
const CapPrediction& suggested(const std::vector<CapPrediction>& predictions, double backward_ms);

}  // namespace rondo::trainer
