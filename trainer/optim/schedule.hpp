// The learning rate as a pure function of the step, so that a run that is resumed goes on exactly.
// Knows no optimizer and keeps no state.
#pragma once

#include <cstdint>
#include <string_view>

#include "rondo/status.hpp"

namespace rondo::trainer {

/// How the rate follows the global batch: linearly (Goyal et al. 2017, for SGD), with its root (for
/// Adam: Malladi et al. 2022), or not at all.
enum class LrScale : uint8_t { kNone, kLinear, kSqrt };
inline constexpr std::string_view kLrScaleNames[] = {"none", "linear", "sqrt"};

/// After the warm-up.
enum class LrDecay : uint8_t { kConstant, kCosine, kLinear };
inline constexpr std::string_view kLrDecayNames[] = {"constant", "cosine", "linear"};

struct ScheduleOptions {
  double base_rate = 0.02;  // for `base_batch` samples per step
  LrScale scale = LrScale::kNone;
  uint64_t base_batch = 0;    // read only where scale is not kNone; as is global_batch
  uint64_t global_batch = 0;  // samples per step, of all ranks and micro-batches
  uint64_t warmup_steps = 0;
  LrDecay decay = LrDecay::kConstant;
  double min_rate = 0;     // that of the last step, where the rate decays; not scaled
  uint64_t last_step = 0;  // read only where it decays

  bool operator==(const ScheduleOptions&) const = default;
};

/// Values that make no schedule: rates that are negative or no numbers, a batch of 0, a minimum
/// above the peak, a decay without an end.
Status check(const ScheduleOptions& options);

/// The rate at the end of the warm-up: base_rate scaled by the batch.
double peak_rate(const ScheduleOptions& options);

/// Steps count from 1. Step s of the warm-up has s / warmup_steps of the peak; the peak is reached
/// at step max(1, warmup_steps), and a decay goes from there to min_rate at last_step, and stays
/// there. A warm-up that does not end before last_step is not cut short. REQUIRES: step >= 1,
/// check().
double learning_rate(const ScheduleOptions& options, uint64_t step);

}  // namespace rondo::trainer
