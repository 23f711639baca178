// The run around the steps, for every strategy: where it begins, steps until the end with
// checkpoints and validations between them, and what is the same of all runs at the end. What a
// step does is the strategy's: train.cpp, examples/strategy_dp.cpp.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/checkpoint/checkpointing.hpp"
#include "trainer/cli/options.hpp"
#include "trainer/data/dataset.hpp"
#include "trainer/optim/schedule.hpp"
#include "trainer/report/report.hpp"
#include "trainer/report/summary.hpp"
#include "trainer/step/elastic.hpp"
#include "trainer/step/step.hpp"

namespace rondo::trainer {

/// One run: its parts, borrowed, and how far it is.
template <class T>
struct Run {
  const TrainOptions& options;
  const Dataset& data;
  const Dataset* validation;  // may be null
  Communicator& communicator;
  Model<T>& model;
  Weights<T>& weights;
  RankSamples& samples;
  std::optional<Report>& report;  // stays empty but on rank 0, and with --elastic
  const std::atomic<bool>& stop;  // set: all ranks end the run after the step under way
  Survivors& survivors;
  AgreedState<T>* agreed = nullptr;  // null: none is kept

  std::vector<Plan> plans = {};  // of each bucket: the strategy's
  // Where gradients travel on a device: whose buckets, and by what. Null: the weights', by
  // `communicator`.
  DistributedDataParallel* device_ddp = nullptr;
  const Communicator* on_device = nullptr;
  uint64_t uncounted_bytes = 0;  // that it has sent in replayed graphs
  size_t readers = 0;            // threads that read ahead: the strategy's

  ScheduleOptions schedule = {};
  uint64_t steps_per_epoch = 0, first_step = 0;
  uint64_t last_step = 0;  // exact unless ranks have data of different sizes
  uint64_t cores = 0;      // that the ranks together may run on
  uint64_t step = 0;       // made so far
  uint64_t loaded = 0;     // the step of the checkpoint that it began with: not to be saved again
  // On rank 0, of that checkpoint, until begin_buckets() has compared this run with it.
  std::optional<CheckpointOrigin> origin = std::nullopt;
  bool begun = false;    // before ranks died it had made a step
  bool stopped = false;  // the ranks have agreed to end it
  struct Made {          // a step that has not been reported
    uint64_t number, epoch;
    double rate;
  };
  std::deque<Made> unreported = {};

  bool reports() const { return communicator.rank() == 0; }
  uint64_t ranks() const { return static_cast<uint64_t>(communicator.size()); }
  /// In whose buckets gradients travel.
  DistributedDataParallel& ddp() const {
    return device_ddp != nullptr ? *device_ddp : weights.ddp();
  }
  RunFacts facts() const;
  uint64_t bytes_sent() const;  // by this rank so far
};

/// What a strategy makes a run of. Every rank makes the same calls.
struct Strategy {
  /// Makes step `number` at this learning rate.
  std::function<Result<StepResult>(uint64_t number, double rate)> step;
  /// Waits for what the last step has left under way.
  std::function<Status()> await;
  /// Where reports come late: waits for that of the last step, unless step() has returned it.
  std::function<Result<std::optional<StepReport>>()> last_report = nullptr;
  /// Makes parameters and buffers what every rank may evaluate with.
  std::function<Status()> settle;
  /// Where they are not in Run::weights: brings them there, with the optimizer's state. Collective.
  std::function<Status()> fetch = nullptr;
};

/// What all ranks know at the end.
struct End {
  std::vector<uint64_t> hashes;      // of each rank's parameters
  std::vector<uint64_t> bytes_sent;  // by each rank, per step
};

/// kMismatch: ranks hold other parameters, which would be a bug.
Status require_same_parameters(const End& end);

/// Everything before the first step: parameters from a checkpoint, a file of weights, or the seed;
/// how many steps there will be; and rank 0's report.
template <class T>
Status begin_run(Run<T>& run);

/// Steps until the end, and what comes between and after them but the summary. A stopped run saves a
/// checkpoint, but makes no validation and writes no --save-weights.
template <class T>
Result<End> make_steps(Run<T>& run, const Strategy& strategy);

}  // namespace rondo::trainer
