// See loss_scaler.hpp.
#include "trainer/optim/loss_scaler.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace rondo::trainer {

bool LossScaler::update(bool finite) {
  if (!finite) {
    const float smaller = state_.scale * options_.backoff;
    if (smaller >= std::numeric_limits<float>::min()) state_.scale = smaller;
    state_.good_steps = 0;
    ++state_.skipped_steps;
    return false;
  }
  if (++state_.good_steps < options_.growth_interval) return true;
  const float larger = state_.scale * options_.growth;
  if (std::isfinite(larger)) state_.scale = larger;
  state_.good_steps = 0;
  return true;
}

Status LossScaler::restore(const LossScalerState& state) {
  const bool usable = std::isfinite(state.scale) && state.scale > 0;
  if (!usable || state.good_steps >= options_.growth_interval) {
    return Status(Code::kDataError,
                  "loss scaler: a scale of " + std::to_string(state.scale) + " after " +
                      std::to_string(state.good_steps) + " good steps is none that growing every " +
                      std::to_string(options_.growth_interval) + " steps leads to");
  }
  state_ = state;
  return {};
}

}  // namespace rondo::trainer
