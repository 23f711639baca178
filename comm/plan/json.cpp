// A plan as JSON: everything that the text shows, uncut.
#include <nlohmann/json.hpp>

#include "comm/plan/candidate_json.hpp"
#include "comm/plan/plan.hpp"

namespace rondo::plan {
namespace {

using nlohmann::ordered_json;
using schedule::Action;

ordered_json operands(const std::vector<schedule::Operand>& some, bool destinations) {
  ordered_json list = ordered_json::array();
  for (const schedule::Operand& o : some) list.push_back(operand_text(o, destinations));
  return list;
}

ordered_json schedule_json(const schedule::Schedule& s) {
  ordered_json steps = ordered_json::array();
  for (const schedule::Step& step : s.steps) {
    ordered_json one = {{"step", schedule::name_of(step)}};
    if (step.action == Action::kWait) one["peer"] = step.peer;
    if (step.action == Action::kMove) {
      one["chunk"] = step.chunk;
      one["from"] = operands(step.sources, false);
      one["to"] = operands(step.destinations, true);
      one["finishes"] = step.finishes;
    }
    steps.push_back(std::move(one));
  }
  return {{"rank", s.rank}, {"steps", std::move(steps)}};
}

ordered_json bytes_json(const RankBytes& b) {
  return {{"rank", b.rank},
          {"sent", b.sent},
          {"sent_formula", b.sent_text},
          {"sent_by_formula", b.formula_sent},
          {"fetched", b.fetched},
          {"fetched_formula", b.fetched_text},
          {"fetched_by_formula", b.formula_fetched}};
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

template <class T, class Convert>
ordered_json list_of(const std::vector<T>& values, Convert convert) {
  ordered_json list = ordered_json::array();
  for (const T& value : values) list.push_back(convert(value));
  return list;
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
      {"cores", r.cores ? ordered_json(*r.cores) : ordered_json()},
      {"root", is_rooted(r.collective) ? r.root : -1},
      {"size", r.size_bytes},
      {"count", plan.count},
      {"type", name(r.type)},
      {"redop", form_of(r.collective).reduces ? name(r.op) : "none"},
      {"links",
       {{"name", r.links.name}, {"slots", r.links.slots}, {"slot_bytes", r.links.slot_bytes}}},
      {"algorithm", name(plan.algorithm)},
      {"why", plan.why},
      {"predicted_us", plan.predicted_us()},
      {"library_memory_us",
       plan.library_memory_us ? ordered_json(*plan.library_memory_us) : ordered_json()},
      {"candidates", list_of(plan.candidates, candidate_json)},
      {"chunks", plan.schedules[0].chunks},
      {"chunk_elements", g.block},
      {"rounds", g.rounds},
      {"slices", g.slices},
      {"slice_elements", g.slice},
      {"equal_chunks", plan.equal_chunks},
      {"bytes", list_of(plan.bytes, bytes_json)},
      {"wire", wire_json(plan)},
      {"bytes_match", plan.bytes_match()},
      {"verification", verification_json(plan)},
      {"schedule", list_of(plan.schedules, schedule_json)}};
  return document.dump(1) + "\n";
}

}  // namespace rondo::plan
