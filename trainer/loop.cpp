// See loop.hpp.
#include "trainer/loop.hpp"

#include <spdlog/spdlog.h>

#include <cmath>

#include "trainer/checkpointing.hpp"
#include "trainer/hash.hpp"
#include "trainer/ranks.hpp"
#include "trainer/setup.hpp"

namespace rondo::trainer {

TrainingLoop::TrainingLoop(const LoopParts& parts)
    : o_(parts.options),
      data_(parts.data),
      communicator_(parts.communicator),
      ddp_(parts.ddp),
      ranks_(static_cast<uint64_t>(parts.communicator.size())),
      report_(parts.report),
      validation_(parts.validation) {}

Status TrainingLoop::run() {
  RONDO_RETURN_IF_ERROR(start());
  bytes_before_ = communicator_.stats().bytes_sent;
  if (reports() && reached_end()) {
    spdlog::warn("nothing to do: '{}' holds step {}, and {} ends there", o_.checkpoint_dir, step_,
                 o_.steps != 0 ? fmt::format("--steps {}", o_.steps)
                               : fmt::format("--epochs {}", o_.epochs));
  }
  while (!reached_end()) {
    const Result<bool> made = step();
    RONDO_RETURN_IF_ERROR(made.status());
    if (!made.value() || reached_end()) continue;
    if (o_.checkpoint_every != 0 && step_ % o_.checkpoint_every == 0) {
      RONDO_RETURN_IF_ERROR(save());
    }
    if (o_.validate_every != 0 && step_ % o_.validate_every == 0) {
      RONDO_RETURN_IF_ERROR(validate());
    }
  }
  return finish();
}

Status TrainingLoop::plan_schedule() {
  if (steps_per_epoch_ == 0) {
    return Status(
        Code::kDataError,
        fmt::format("data '{}': has {} samples, fewer than --drop-last needs for one batch "
                    "of {} on each rank",
                    data_.facts().path, data_.samples(), o_.batch));
  }
  schedule_ = schedule_options(o_, o_.batch * o_.accum * ranks_, expected_last_step_);
  return check(schedule_);
}

Status TrainingLoop::open_report() {
  if (!reports()) return {};
  RONDO_RETURN_IF_ERROR(try_outputs(o_));
  Result<Report> report = Report::open(o_, expected_last_step_, config_of(facts()));
  RONDO_RETURN_IF_ERROR(report.status());
  report_ = std::move(report).value();
  return {};
}

Status TrainingLoop::require_finite(double loss) const {
  if (std::isfinite(loss)) return {};
  return Status(Code::kInvalidArgument,
                fmt::format("the loss became {} in step {}: lower --lr, now {}",
                            std::isnan(loss) ? std::abs(loss) : loss, step_, o_.lr));  // no "-nan"
}

RunFacts TrainingLoop::facts() const {
  return {.options = o_,
          .data = data_.facts(),
          .ddp = ddp_,
          .plans = plans_,
          .ranks = ranks_,
          .steps_per_epoch = steps_per_epoch_,
          .last_step = expected_last_step_,
          .global_batch = o_.batch * o_.accum * ranks_,
          .first_step = first_step_,
          .sizes = sizes()};
}

Status TrainingLoop::validate() {
  if (validation_ == nullptr) return {};
  RONDO_RETURN_IF_ERROR(settle());
  const Result<Evaluation> result = evaluate_model();
  RONDO_RETURN_IF_ERROR(result.status());
  if (!reports()) return {};
  report_->add_validation({.step = step_,
                           .loss = result.value().loss,
                           .accuracy = result.value().accuracy,
                           .samples = result.value().samples});
  return {};
}

Status TrainingLoop::finish() {
  RONDO_RETURN_IF_ERROR(end_step());
  const uint64_t sent = communicator_.stats().bytes_sent - bytes_before_;
  RONDO_RETURN_IF_ERROR(save());
  RONDO_RETURN_IF_ERROR(validate());
  if (!o_.save_weights.empty()) RONDO_RETURN_IF_ERROR(write_weights());
  const uint64_t steps = step_ - first_step_;
  const size_t bytes = ddp_.parameter_elements() * size_of(ddp_.type());
  const uint64_t mine[] = {hash_bytes(ddp_.parameters(), bytes), steps == 0 ? 0 : sent / steps};
  const Result<std::vector<uint64_t>> all = gather_words(communicator_, mine);
  RONDO_RETURN_IF_ERROR(all.status());
  End end;
  for (uint64_t r = 0; r < ranks_; ++r) {
    end.hashes.push_back(all.value()[2 * r]);
    end.bytes_sent.push_back(all.value()[2 * r + 1]);
  }
  return conclude(end);
}

}  // namespace rondo::trainer
