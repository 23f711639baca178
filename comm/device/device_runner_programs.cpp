// The programs of a rank's operations in its GPU's memory: and room for them.
#include <fmt/format.h>

#include <set>
#include <utility>

#include "comm/device/device_runner.hpp"

namespace rondo::device {

Status DeviceRunner::make_room(const std::list<engine::Operation>& operations) {
  const DeviceScope scope(cuda_, device_);
  if (!scope.status().ok()) return raise_own(scope.status());
  bool all_captured = true;
  const auto fits = [&]() -> Result<bool> {
    std::set<std::pair<const engine::ExecutionPlan*, bool>> plans;  // equal calls share them
    size_t bytes = 0;
    for (const engine::Operation& operation : operations) {
      const engine::Prepared& prepared = *operation.prepared;
      const uint64_t capture = RONDO_TRY(cuda_.capture_of(operation.stream));
      const bool captured = capture != 0;
      all_captured = all_captured && captured;
      const auto add = [&](const engine::ExecutionPlan& plan) {
        if (plans.emplace(&plan, captured).second) bytes += programs_->needed(plan, captured);
      };
      if (is_by_copies(prepared)) {
        RONDO_TRY(need_barrier());
        add(barrier_->staged);
        continue;
      }
      add(prepared.direct ? *prepared.direct : prepared.staged);
      if (asks(prepared)) add(prepared.staged);
    }
    return bytes <= programs_->room();
  };
  const Result<bool> fit = fits();
  if (!fit.ok()) return raise_own(fit.status());
  // A captured call never waits; upload() looks whether it may drop programs.
  if (*fit || all_captured) return {};
  // Half a group must not wait for itself: peers may be this thread's, too, and their part of it
  // comes only after this call.
  const bool is_free = RONDO_TRY(await_launches(operations.front().timeout_ns));
  if (is_free) programs_->forget();
  return {};
}

Result<DeviceRunner::Programmed> DeviceRunner::find_programs(const engine::Operation& operation,
                                                             bool captured) {
  const engine::Prepared& prepared = *operation.prepared;
  if (is_by_copies(prepared)) return find_barrier(captured);
  const auto find = [&](const engine::ExecutionPlan& plan) {
    return programs_->find(plan, operation.keep_alive, bootstrap_.size(), captured);
  };
  const Uploaded* const plan =
      RONDO_TRY(find(prepared.direct ? *prepared.direct : prepared.staged));
  if (!asks(prepared)) return Programmed{plan, nullptr};
  const Uploaded* const staged = RONDO_TRY(find(prepared.staged));
  return Programmed{plan, staged};
}

/// On the device; REQUIRES: a launch is begun, for which it is.
Result<DeviceRunner::Programmed> DeviceRunner::upload(const engine::Operation& operation) {
  const bool captured = begun_->capture != 0;
  auto found = find_programs(operation, captured);
  if (found.ok() || found.status().code() != Code::kResourceExhausted) return found;
  if (captured) {  // the begun launch reads programs of graphs only
    const Result<bool> idle = is_idle();
    if (!idle.ok() || !*idle) {
      return Status(found.status().code(),
                    fmt::format("{}. A captured call does not wait for operations that run, to "
                                "make room: capture after they have ended",
                                found.status().message()));
    }
    programs_->forget();
    return find_programs(operation, captured);
  }
  // All programs but those of graphs can be dropped as soon as no kernel reads them; the begun
  // launch reads some, so it is launched first. Peers do not wait for this rank meanwhile:
  // everything it has begun is on its GPU.
  if (begun_->blocks > 0) RONDO_TRY(launch());
  const bool is_free = RONDO_TRY(await_launches(operation.timeout_ns));
  if (!is_free) return found;
  programs_->forget();
  RONDO_TRY(begin_launch(operation.stream));
  return find_programs(operation, captured);
}

}  // namespace rondo::device
