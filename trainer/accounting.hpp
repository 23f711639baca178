// Where a run's time went, as rank 0 tells it at the end: each bucket, the step's computing and
// communicating apart and together, what limits it, and what another bucket cap would have cost.
// Puts measurements, predictions and advice into words and JSON; measures nothing.
//
//   compute        a step without waiting and without communication beside it: the control run's
//                  pass and the run's optimizer. Without a control run: the step less what it
//                  waited for communication and data; what communication slowed down is then in
//                  it.
//   communication  the control run's all-reduces, alone. Without one: those of the run, of each
//                  the time of the rank that came last, who waited for nobody. With --zero 1
//                  reduce-scatters, and the gathers of the run, told in the same way.
//   sum            compute + communication: nothing overlaps
//   max            the longer of the two: everything overlaps
//   measured       the step, less what it waited for data
//   contention     how much longer the run's steps computed, all waiting left out, than `compute`,
//                  as a share of it: the price of communicating meanwhile. Null without a control
//                  run.
#pragma once

#include <nlohmann/json.hpp>
#include <numeric>

#include "rondo/communicator.hpp"
#include "trainer/advice.hpp"
#include "trainer/control.hpp"
#include "trainer/measurements.hpp"
#include "trainer/summary.hpp"

namespace rondo::trainer {

/// What takes all ranks' measurements to say.
struct AllRanks {
  Lateness lateness;
  std::vector<double> costs_ms;         // of each bucket's gradients
  std::vector<double> gather_costs_ms;  // of its parameters; zeros without --zero 1
  double exposed_cost_ms;               // what a step exposes to the rank that waited for nobody

  double gathers_ms() const {
    return std::accumulate(gather_costs_ms.begin(), gather_costs_ms.end(), 0.0);
  }
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

/// Adds to rank 0's summary, and logs the sentences. REQUIRES: at least one step was made.
void account(const Evidence& evidence, nlohmann::ordered_json& summary);

}  // namespace rondo::trainer
