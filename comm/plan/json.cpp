// A plan as JSON: everything that the text shows, uncut.
#include <nlohmann/json.hpp>

#include "comm/plan/plan_json.hpp"

namespace rondo::plan {
namespace {

using nlohmann::ordered_json;
using schedule::Action;

ordered_json operands(const std::vector<schedule::Operand>& some, bool destinations) {
  return list_of(some, [&](const auto& operand) { return operand_text(operand, destinations); });
}

ordered_json step_json(const schedule::Step& step) {
  ordered_json json = {{"step", schedule::name_of(step)}};
  if (step.action == Action::kWait) json["peer"] = step.peer;
  if (step.action == Action::kMove) {
    json["chunk"] = step.chunk;
    json["from"] = operands(step.sources, false);
    json["to"] = operands(step.destinations, true);
    json["finishes"] = step.finishes;
  }
  return json;
}

ordered_json schedule_json(const schedule::Schedule& s) {
  return {{"rank", s.rank}, {"steps", list_of(s.steps, step_json)}};
}

ordered_json rank_bytes_json(const RankBytes& b) {
  ordered_json json = {{"rank", b.rank}};
  json.update(bytes_json(b));
  return json;
}

ordered_json hosts_json(const PlanRequest& r) {
  ordered_json list = ordered_json::array();
  for (int host = 0; host < r.hosts->hosts(); ++host) {
    list.push_back(r.hosts->ranks_on(host).size());
  }
  return list;
}

ordered_json host_bytes_json(const HostBytes& h) {
  return {{"host", h.host}, {"ranks", h.ranks}, {"sent", h.sent}, {"received", h.received}};
}

/// null if there is no value.
template <class T>
ordered_json optional_json(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

/// null where all ranks are on one host.
ordered_json wire_json(const ExplainedPlan& plan) {
  if (!plan.wire) return {};
  return {
      {"hosts", list_of(plan.wire->hosts, host_bytes_json)},
      {"busiest", plan.wire->hosts.empty() ? ordered_json() : ordered_json(plan.wire->busiest())},
      {"busiest_formula", plan.wire->text},
      {"busiest_by_formula", plan.wire->formula}};
}

ordered_json verification_json(const ExplainedPlan& plan) {
  if (!plan.verification) return {{"verified", false}, {"why", plan.not_verified}};
  const Verification& v = *plan.verification;
  if (!v.verdict.ok()) return {{"verified", false}, {"why", v.verdict.message()}};
  return {{"verified", true},
          {"moves", v.report.moves},
          {"rounds", v.report.rounds},
          {"rounds_carried_out", v.report.rounds_carried_out},
          {"rank_order", v.report.rank_order}};
}

}  // namespace

std::string to_json_text(const ExplainedPlan& plan) {
  const PlanRequest& r = plan.request;
  const schedule::Geometry& g = plan.programs[0].channels[0];
  const ordered_json document = {
      {"program", "rondo-plan"},
      {"collective", name(r.collective)},
      {"ranks", r.ranks},
      {"hosts", hosts_json(r)},
      {"gpus", r.reach ? ordered_json(name(*r.reach)) : ordered_json()},
      {"cores", optional_json(r.cores)},
      {"root", internal::is_rooted(r.collective) ? r.root : -1},
      {"size", r.size_bytes},
      {"count", plan.count},
      {"type", name(r.type)},
      {"redop", internal::form_of(r.collective).reduces ? name(r.op) : "none"},
      {"links",
       {{"name", r.links.name}, {"slots", r.links.slots}, {"slot_bytes", r.links.slot_bytes}}},
      {"algorithm", name(plan.algorithm)},
      {"why", plan.why},
      {"predicted_us", plan.predicted_us()},
      {"library_memory_us", optional_json(plan.library_memory_us)},
      {"candidates", list_of(plan.candidates, candidate_json)},
      {"chunks", plan.schedules[0].chunks},
      {"chunk_elements", g.block},
      {"rounds", g.rounds},
      {"slices", g.slices},
      {"slice_elements", g.slice},
      {"equal_chunks", plan.equal_chunks},
      {"bytes", list_of(plan.bytes, rank_bytes_json)},
      {"wire", wire_json(plan)},
      {"bytes_match", plan.bytes_match()},
      {"verification", verification_json(plan)},
      {"schedule", list_of(plan.schedules, schedule_json)}};
  return document.dump(1) + "\n";
}

}  // namespace rondo::plan
