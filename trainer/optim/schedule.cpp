// See schedule.hpp.
#include "trainer/optim/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace rondo::trainer {
namespace {

Status refuse(const std::string& what) {
  return Status(Code::kInvalidArgument, "learning rate: " + what);
}

bool is_rate(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

Status check(const ScheduleOptions& options) {
  if (!is_rate(options.base_rate)) {
    return refuse("the base rate is " + std::to_string(options.base_rate) +
                  "; give a number that is not negative");
  }
  if (options.scale != LrScale::kNone && (options.base_batch == 0 || options.global_batch == 0)) {
    return refuse("to scale it with the batch, the base batch (" +
                  std::to_string(options.base_batch) + ") and the global batch (" +
                  std::to_string(options.global_batch) + ") must be at least 1");
  }
  if (options.decay == LrDecay::kConstant) return {};
  if (!is_rate(options.min_rate) || options.min_rate > peak_rate(options)) {
    return refuse("the least rate is " + std::to_string(options.min_rate) +
                  "; give one between 0 and the peak, " + std::to_string(peak_rate(options)));
  }
  if (options.last_step == 0) return refuse("a decay needs the number of the last step");
  return {};
}

double peak_rate(const ScheduleOptions& options) {
  if (options.scale == LrScale::kNone) return options.base_rate;
  const double ratio =
      static_cast<double>(options.global_batch) / static_cast<double>(options.base_batch);
  return options.base_rate * (options.scale == LrScale::kLinear ? ratio : std::sqrt(ratio));
}

double learning_rate(const ScheduleOptions& options, uint64_t step) {
  const double peak = peak_rate(options);
  if (step < options.warmup_steps) {
    return peak * (static_cast<double>(step) / static_cast<double>(options.warmup_steps));
  }
  const uint64_t start = std::max<uint64_t>(1, options.warmup_steps);
  if (options.decay == LrDecay::kConstant || step <= start) return peak;
  if (step >= options.last_step) return options.min_rate;
  const double progress =
      static_cast<double>(step - start) / static_cast<double>(options.last_step - start);
  const double share = options.decay == LrDecay::kLinear
                           ? 1 - progress
                           : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return options.min_rate + (peak - options.min_rate) * share;
}

}  // namespace rondo::trainer
