// One sentence about what a run's speed is limited by, by rules over measured numbers. Pure; knows
// no ranks, no clocks and no files.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace rondo::trainer {

/// The rank that comes last to the end of backward.
struct Lateness {
  size_t rank = 0;   // the one that is last most often
  double share = 0;  // of the steps, in which it is
  double late_ms =
      0;  // the median, over all steps, of how much later than the next it is; 0: never
  double spread_ms =
      0;  // the median of how far apart the first and the last come, whoever they are
};

/// arrivals[r][s]: when rank r's backward ended in step s, since something that all ranks have in
/// common. Nothing of fewer than two ranks. REQUIRES: as many steps of every rank.
Lateness lateness(const std::vector<std::vector<double>>& arrivals);

/// What each bucket's all-reduce costs by itself. transfers[r]: rank r's, of each bucket one after
/// the other in each step. In every step the shortest counts, because the rank that comes last
/// waits for no other; of the steps the median. REQUIRES: as many of every rank, `buckets` times as many as
/// steps.
std::vector<double> costs_ms(const std::vector<std::vector<double>>& transfers, size_t buckets);

/// One bucket of a step, times since backward began.
struct ObservedBucket {
  size_t bytes;
  double ready_ms;
  double cost_ms;  // of its all-reduce, without waiting for other ranks
  std::string members;
};

/// A step, as medians over a run.
struct Observed {
  size_t ranks = 1;
  bool overlap = true;
  double step_ms = 0, data_wait_ms = 0;
  double backward_ms = 0;
  // Of a step alone, and how much longer it computed while it communicated; 0: not measured.
  double compute_ms = 0, slowed_ms = 0;
  // Of what communication takes alone, the share that overlap saves, if that was measured.
  std::optional<double> hidden_fraction{};
  double exposed_ms = 0;  // what the step waited for communication, headers and the like included
  double gather_wait_ms = 0;  // of it, for parameters (ZeRO-1)
  double latency_ms = 0;      // of an all-reduce of next to nothing
  double cap_gain_ms = 0;     // of the wait, what another bucket cap is predicted to save
  std::vector<ObservedBucket> buckets;
  Lateness lateness;
};

/// The first that holds:
///   one rank          nothing is communicated
///   data-bound        more than 20 % of the step waits for samples
///   contention        computing takes longer while communication runs, by more than 5 % of the step
///                     and by more than the step waits for communication
///   compute-bound     less than 5 % of the step waits for communication
///   straggler         a rank is last in 70 % of the steps or more, and by half the wait or more
///   uneven            ranks come as far apart, but not always the same one last
///   not overlapped    --no-overlap
///   gathers           half of the wait, or more, is for ZeRO-1's parameters
///   latency           what the all-reduces would cost empty is half of what they cost, or more
///   tail              one bucket takes so much longer than the rest of backward that it
///                     explains half of the wait, or those that are ready in its last 5 % do; and
///                     not the sheer length of all-reduces. A smaller cap is named where one helps
///   communication-bound  the all-reduces take longer than backward goes on after the first bucket
///   mixed             none of these alone
std::string diagnose(const Observed& observed);

}  // namespace rondo::trainer
