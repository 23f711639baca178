// By how much the loss is multiplied so that small gradients survive fp16: as large as goes
// without overflow, found by trial, as torch.cuda.amp.GradScaler does. A pure state machine: finds
// no infinities and scales nothing itself.
#pragma once

#include <cstdint>
#include <limits>

#include "rondo/status.hpp"

namespace rondo::trainer {

struct LossScalerOptions {
  float initial = 65536;
  float growth = 2;
  float backoff = 0.5;
  uint64_t growth_interval = 2000;  // good steps between two growths
};

/// What a checkpoint keeps.
struct LossScalerState {
  float scale = 65536;
  uint64_t good_steps = 0;     // since the scale last changed, or was about to
  uint64_t skipped_steps = 0;  // ever

  bool operator==(const LossScalerState&) const = default;
};

/// LossScaler::update(), also on a device.
constexpr bool update_scaler(const LossScalerOptions& options, LossScalerState& state,
                             bool finite) {
  if (!finite) {
    const float smaller = state.scale * options.backoff;
    if (smaller >= std::numeric_limits<float>::min()) state.scale = smaller;
    state.good_steps = 0;
    ++state.skipped_steps;
    return false;
  }
  if (++state.good_steps < options.growth_interval) return true;
  const float larger = state.scale * options.growth;
  if (larger <= std::numeric_limits<float>::max()) state.scale = larger;
  state.good_steps = 0;
  return true;
}

class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options = {})
      : options_(options), state_{.scale = options.initial} {}

  /// What this step's loss is multiplied by, and its gradients divided by before the optimizer.
  float scale() const { return state_.scale; }

  /// Ends a step. `finite`: whether all gradients, of all ranks, were finite; all ranks must say
  /// the same. Returns whether the optimizer makes the step. The scale grows to no infinity and,
  /// other than PyTorch's, shrinks to no zero, by which gradients could not be divided.
  bool update(bool finite) { return update_scaler(options_, state_, finite); }

  const LossScalerState& state() const { return state_; }
  /// An error, and no change, where a state is one that no scaler with these options reaches.
  Status restore(const LossScalerState& state);

 private:
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace rondo::trainer
