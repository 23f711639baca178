// See loss_scaler.hpp.
#include "trainer/optim/loss_scaler.hpp"

#include <cmath>
#include <string>

namespace rondo::trainer {

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
