// The loop that both strategies share: steps until the end, checkpoints and validations between
// them, and what rank 0 reports. What a step is, is theirs: train.cpp, strategy_dp.cpp.
#pragma once

#include <optional>
#include <vector>

#include "trainer/data/dataset.hpp"
#include "trainer/evaluate.hpp"
#include "trainer/optim/schedule.hpp"
#include "trainer/options.hpp"
#include "trainer/report.hpp"
#include "trainer/summary.hpp"

namespace rondo::trainer {

/// Borrowed.
struct LoopParts {
  const Options& options;
  const Dataset& data;
  const Dataset* validation;  // may be null
  Communicator& communicator;
  DistributedDataParallel& ddp;
  std::optional<Report>& report;  // stays empty but on rank 0
};

/// One run. Every rank goes through the same calls.
class TrainingLoop {
 public:
  Status run();

 protected:
  explicit TrainingLoop(const LoopParts& parts);
  virtual ~TrainingLoop() = default;

  /// What all ranks know at the end.
  struct End {
    std::vector<uint64_t> hashes;      // of each rank's parameters
    std::vector<uint64_t> bytes_sent;  // by each rank, per step
  };
  /// Everything before the first step, plan_schedule() and open_report() included.
  virtual Status start() = 0;
  /// Counts step_, and adds it to the report. False: only an epoch has ended.
  virtual Result<bool> step() = 0;
  /// Waits for what the last step has left under way.
  virtual Status end_step() { return {}; }
  /// Makes parameters and buffers what every rank may evaluate with.
  virtual Status settle() = 0;
  virtual Status save() { return {}; }
  virtual Status write_weights() = 0;
  virtual Result<Evaluation> evaluate_model() = 0;
  /// The rest, rank 0's summary included.
  virtual Status conclude(const End& end) = 0;
  virtual RunFacts::Sizes sizes() const = 0;

  /// From steps_per_epoch_ and expected_last_step_.
  Status plan_schedule();
  /// Rank 0, behind plan_schedule() and plans_. Also tries what is to be written at the end.
  Status open_report();
  Status require_finite(double loss) const;
  RunFacts facts() const;
  bool reports() const { return communicator_.rank() == 0; }

  const Options& o_;
  const Dataset& data_;
  Communicator& communicator_;
  DistributedDataParallel& ddp_;
  const uint64_t ranks_;
  std::optional<Report>& report_;
  std::vector<Plan> plans_;  // of each bucket
  ScheduleOptions schedule_;
  uint64_t steps_per_epoch_ = 0, first_step_ = 0;
  uint64_t last_step_ = 0;           // 0: by epochs
  uint64_t expected_last_step_ = 0;  // exact unless ranks have data of different sizes
  uint64_t step_ = 0, epoch_ = 0;
  const Dataset* const validation_;

 private:
  bool reached_end() const { return last_step_ != 0 ? step_ >= last_step_ : epoch_ >= o_.epochs; }
  Status validate();
  Status finish();

  uint64_t bytes_before_ = 0;  // Stats::bytes_sent when the first step began
};

}  // namespace rondo::trainer
