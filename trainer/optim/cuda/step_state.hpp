// What differs from step to step, in a GPU's memory: a kernel's arguments are the same in every
// step, so that a step can be captured in a graph. What dropout draws differs, too, and travels
// with each batch (InputQueue).
#pragma once

#include "trainer/layers/cuda/block.hpp"
#include "trainer/optim/loss_scaler.hpp"
#include "trainer/optim/optimizer.hpp"

namespace rondo::trainer::cuda {

/// What the host knows of a step: one copy at its beginning.
struct StepValues {
  double rate = 0;        // learning rate
  double factor = 1;      // of the reduced gradients
  float loss_factor = 1;  // of this rank's loss
};

/// What the optimizers' kernels read.
template <class W>
struct UpdateFactors {
  W coefficient{};  // of gradients
  W rate{};         // SGD's
  W keep{};         // AdamW's, as the next two: see simd::AdamWFactors
  W second_correction_root{}, step_size{};
  bool skips = false;  // nothing changes but gradients, which are cleared
};

/// What a step's report says of its update.
struct UpdateResult {
  double norm = 0;  // of the averaged gradients, where it is limited; else 0
  double made = 0;  // 0: skipped
};

template <class W>
struct StepState {
  StepValues values{};
  uint64_t steps = 0;  // that the optimizer has made
  UpdateResult result{};
  UpdateFactors<W> factors{};
  LossScalerState scaler{};
};

/// Counts a step of the optimizer, and derives its factors. With a largest norm, also the gradients'
/// norm, and a coefficient that limits it: ../clip.hpp's formula. With a loss scale, divides by it,
/// and skips the step if a gradient is not finite; then the scale is the next step's.
template <class W>
struct BeginUpdateKernel {
  AdamWOptions adamw;     // read for nothing by SGD
  const double* squares;  // the sum of all reduced gradients'; null without norm and scale
  double max_norm;        // 0: none
  bool scales;            // the loss
  StepState<W>* state;

  static constexpr uint32_t kThreads = kWarp;
  Grid grid() const { return {}; }
  size_t shared_bytes() const { return 0; }

  template <class Block>
  RONDO_DEVICE void run(Block& block) const {
    using std::sqrt;
    if (block.thread() != 0) return;
    const StepValues values = state->values;
    double coefficient = values.factor;
    state->result = {.norm = 0, .made = 1};
    if (scales) {
      coefficient /= static_cast<double>(state->scaler.scale);
      const bool finite = *squares - *squares == 0;
      if (!update_scaler({}, state->scaler, finite)) {
        state->factors.skips = true;
        state->result.made = 0;
        return;
      }
    }
    if (max_norm > 0) {
      const double norm = sqrt(*squares) * coefficient, wanted = max_norm / (norm + 1e-6);
      state->result.norm = norm;
      coefficient *= wanted > 1 ? 1 : wanted;  // NaN stays NaN
    }
    const auto factors = adamw_factors<W>(adamw, ++state->steps, values.rate);
    state->factors = {.coefficient = static_cast<W>(coefficient),
                      .rate = static_cast<W>(values.rate),
                      .keep = factors.keep,
                      .second_correction_root = factors.second_correction_root,
                      .step_size = factors.step_size,
                      .skips = false};
  }
};

}  // namespace rondo::trainer::cuda
