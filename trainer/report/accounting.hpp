// Where a run's time went, in rank 0's summary: each bucket, the step's computing and
// communicating apart and together, what limits it, and what another bucket cap would have cost.
// Puts measurements, predictions and advice into words and JSON; measures nothing.
//
//   compute        a step that neither waits nor communicates: the control run's pass and the run's
//                  optimizer. Without a control run: the step less its waits for communication and
//                  data, which contains what communication slowed down.
//   cost           what communication takes alone: the control run's all-reduces. Without a control
//                  run: those of the run, each as it took on the rank that came last and so waited
//                  for no other. With --zero 1 also the gathers of the run.
//   sum            compute + cost: nothing overlaps
//   max            the longer of the two: everything overlaps
//   measured       the step, less its waits for data
//   slowed         how much longer the run's steps computed than `compute`, all waits left out: the
//                  price of communicating at the same time. Null without a control run.
//   contention     slowed / compute
//   hidden         the time that overlap saves: sum - measured, at most cost. 0 with --no-overlap or
//                  one rank. Null without a control run, and if noise is larger than what it says.
#pragma once

#include <nlohmann/json.hpp>
#include <numeric>

#include "rondo/communicator.hpp"
#include "trainer/report/advice.hpp"
#include "trainer/report/measurements.hpp"
#include "trainer/report/summary.hpp"

namespace rondo::trainer {

/// Computed from the measurements of all ranks.
struct AllRanks {
  Lateness lateness;
  std::vector<double> costs_ms;         // of each bucket's gradients
  std::vector<double> gather_costs_ms;  // of its parameters; zeros without --zero 1
  double exposed_cost_ms;               // what a step exposes to the rank that came last

  double gathers_ms() const {
    return std::accumulate(gather_costs_ms.begin(), gather_costs_ms.end(), 0.0);
  }
};

/// The control run (step/control.hpp): lower quartiles over its passes on this rank.
struct ControlTimes {
  uint64_t steps = 0;  // of each kind; 0: none was made, and the times are 0
  double pass_ms = 0;  // forward and backward over a step's micro-batches, all ranks at once
  double cost_ms = 0;  // all buckets' all-reduces, nothing else being done
};

/// Borrowed.
struct Evidence {
  const RunFacts& facts;
  const Communicator& communicator;  // for what all-reduces are predicted to cost
  bool direct;                       // gradients lie in library memory
  bool updates_along;                // each bucket as soon as it is reduced, if all overlaps
  const Measurements& measured;
  const ControlTimes& control;
  const AllRanks& all;
};

/// Collective.
Result<AllRanks> compare_ranks(Communicator& communicator, const Measurements& measured);

/// Adds to rank 0's summary. REQUIRES: at least one step was made.
void account(const Evidence& evidence, nlohmann::ordered_json& summary);

/// Adds, of a run on a device, the step as a whole, to which the summary's own times and a control
/// run are enough. REQUIRES: control.steps > 0; at least one step was made.
void account_on_device(const ControlTimes& control, double optimizer_ms,
                       nlohmann::ordered_json& summary);

}  // namespace rondo::trainer
