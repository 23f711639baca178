// What --elastic needs: the state that ranks have agreed on, in memory, and which ranks are left.
// A step in which a rank dies is made again by the others, from that state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rondo/communicator.hpp"
#include "trainer/checkpoint/checkpointing.hpp"
#include "trainer/optim/weights.hpp"
#include "trainer/report/report.hpp"

namespace rondo::trainer {

/// A copy of all that a step changes: parameters, the optimizer's state, buffers, the loss scale,
/// the position in the data. As large as parameters and optimizer together. One thread.
template <class T>
class AgreedState {
 public:
  /// Keeps the state after `progress.step`, which every rank has reached or, if it lives, will.
  /// Collective where `shares_buffers`: those of rank 0 are kept, as in a checkpoint. If it fails,
  /// what was kept before is still there. Throws std::bad_alloc.
  Status keep(const TrainingProgress& progress, Communicator& communicator, bool shares_buffers,
              Weights<T>& weights);

  /// Collective, on another communicator: every rank gets the latest state that any has kept, into
  /// `weights`, and with it that rank's `history`. If none has kept any, `found` is false and
  /// nothing has changed. What this rank has kept stays until the next keep().
  Result<TrainingProgress> take(Communicator& communicator, Weights<T>& weights,
                                ReportHistory& history) const;

 private:
  /// What it holds besides arrays.
  struct Scalars {
    uint64_t step, epoch, consumed, optimizer_steps, good_steps, skipped_steps;
    double scale;  // of the loss; 0: none
  };

  bool kept_ = false;
  Scalars scalars_ = {};
  std::vector<T> parameters_, buffers_;
  std::vector<std::vector<T>> optimizer_;
};

/// The ranks of a run, which may lose some. One thread.
class Survivors {
 public:
  explicit Survivors(int ranks);

  /// After `why`: the ranks that are left meet in a new communicator, which replaces
  /// `communicator`. Where only a connection was lost, these are all ranks. An error if they cannot
  /// meet, if fewer than `least` are left, or if no rank has died and no step ends any more.
  Status shrink(Communicator& communicator, const Status& why, int least);
  /// The ranks that are left continue after `step`, with that global batch; with `says`, which is for
  /// rank 0, this logs it. An error if connections were lost too often in this step.
  Status go_on(uint64_t step, uint64_t global_batch, bool says);

  bool has_lost() const { return !deaths_.empty(); }
  const std::vector<Death>& deaths() const { return deaths_; }

 private:
  Status check_losses(int losses, int most) const;

  std::vector<int> left_;  // by their numbers in the first communicator
  std::vector<Death> deaths_;
  bool goes_on_ = true;                    // the others have gone on after the last of them
  std::string why_;                        // of the last deaths
  uint64_t went_on_after_ = ~uint64_t{0};  // which step the run went on the last time
  int losses_in_step_ = 0;                 // of connections, in that step, without a death
  int losses_ = 0;                         // since then
};

}  // namespace rondo::trainer
