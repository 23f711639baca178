// {"question": "verify", "break": [{rank, step, how: "drop" | "double" | "swap"}], ...}: runs the verifier over the
// schedules of an operation, changed as the reader wants them, and says what it says.
#include "comm/algorithms/algorithm.hpp"
#include "comm/plan/plan.hpp"
#include "comm/schedule/verifier.hpp"
#include "explain/answers/answers.hpp"
#include "explain/operation.hpp"

namespace rondo::explain {
namespace {

using schedule::Schedule;

constexpr size_t kMostBreaks = 8;

/// The count with the largest buffer that fits in size_bytes, as rondo-plan has it.
uint64_t count_of(const plan::PlanRequest& r) {
  if (r.collective == Collective::kBarrier) return 0;
  return argument_bytes(r.collective, r.ranks, r.size_bytes / size_of(r.type));
}

Result<std::vector<Schedule>> build_all(const plan::PlanRequest& r) {
  const schedule::SharedHosts hosts =
      r.hosts ? r.hosts : std::make_shared<const base::HostMap>(base::HostMap::one_host(r.ranks));
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < r.ranks; ++rank) {
    schedules.push_back(
        RONDO_TRY(algorithms::build(r.collective, r.algorithm, hosts, rank, r.root)));
  }
  return schedules;
}

/// One change to one rank's steps.
Status break_one(const PageRequest& request, std::vector<Schedule>& schedules) {
  const auto ranks = static_cast<int64_t>(schedules.size());
  const auto rank = static_cast<size_t>(RONDO_TRY(request.whole("rank", 0, ranks - 1)));
  auto& steps = schedules[rank].steps;
  if (steps.empty()) return request.refuse("rank", "has no steps");
  const int64_t last = static_cast<int64_t>(steps.size()) - 1;
  const int64_t step = RONDO_TRY(request.whole("step", 0, last));
  const std::string how = RONDO_TRY(request.text("how", 16));
  const auto at = steps.begin() + step;
  if (how == "drop") {
    steps.erase(at);
  } else if (how == "double") {
    steps.insert(at, schedule::Step(*at));
  } else if (how == "swap") {
    if (step == last)
      return request.refuse("step", "is the last one: there is none to swap it with");
    std::iter_swap(at, at + 1);
  } else {
    return request.refuse("how", "is '" + how + "', and must be drop, double or swap");
  }
  return {};
}

Result<schedule::LoweredOperation> lower_all(const plan::PlanRequest& r,
                                             const schedule::Limits& limits,
                                             const std::vector<Schedule>& schedules) {
  schedule::LoweredOperation operation{.collective = r.collective,
                                       .root = r.root,
                                       .in_place = false,
                                       .count = count_of(r),
                                       .programs = {},
                                       .hosts = r.hosts};
  const auto layout = schedule::equal_layout(r.collective, r.ranks, operation.count);
  for (const Schedule& s : schedules) {
    operation.programs.push_back(RONDO_TRY(schedule::lower(s, operation.count, limits, layout)));
  }
  if (is_varying(r.collective)) operation.layouts.assign(schedules.size(), layout);
  return operation;
}

}  // namespace

Result<Json> verify_schedule(const PageRequest& request) {
  const plan::PlanRequest r = RONDO_TRY(operation_of(request, kMostRanks));
  if (r.algorithm == Algorithm::kAuto) return request.refuse("algorithm", "must be named");
  std::vector<Schedule> schedules = RONDO_TRY(build_all(r));
  const Json* const breaks = RONDO_TRY(request.list("break", kMostBreaks));
  for (size_t i = 0; breaks != nullptr && i < breaks->size(); ++i) {
    const PageRequest one = RONDO_TRY(request.item("break", i));
    RONDO_TRY(break_one(one, schedules));
  }
  const schedule::Limits limits{
      .element_bytes = r.collective == Collective::kBarrier ? 1 : size_of(r.type),
      .slot_bytes = r.links.slot_bytes,
      .depth = r.links.slots,
      .min_slice_bytes = r.hosts ? schedule::kLeastWireSlice : schedule::kLeastSlice};
  size_t steps = 0;
  for (const Schedule& s : schedules) steps += s.steps.size();
  Json verdict = {{"steps", steps}, {"verified", false}, {"why", ""}};
  const auto operation = lower_all(r, limits, schedules);
  if (!operation.ok()) {
    verdict["why"] = operation.status().message();
    return verdict;
  }
  const auto report = schedule::verify({&*operation, 1}, limits);
  verdict["verified"] = report.ok();
  verdict["why"] = report.status().message();
  if (report.ok()) {
    verdict["moves"] = report->moves;
    verdict["rounds"] = report->rounds;
    verdict["rounds_carried_out"] = report->rounds_carried_out;
    verdict["rank_order"] = report->rank_order;
  }
  return verdict;
}

}  // namespace rondo::explain
