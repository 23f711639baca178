// {"question": "schedule", ...}: every step of every rank, when it can happen, what it holds, and the bytes beside the
// formula: what chapter 1 draws. The schedules are those that a communicator runs, and proved before they are shown.
#include <algorithm>

#include "comm/plan/picture.hpp"
#include "comm/plan/plan.hpp"
#include "comm/plan/plan_json.hpp"
#include "explain/answers/answers.hpp"
#include "explain/operation.hpp"

namespace rondo::explain {
namespace {

using plan::list_of;
using schedule::Operand;
using schedule::OperandKind;
using schedule::Schedule;
using schedule::Step;

/// Into how many blocks the page divides a rank's buffer.
int columns_of(const Schedule& s) {
  return base_of(s.collective) == Collective::kAllToAll ? s.ranks : s.chunks;
}

/// The ranks whose data a value holds: for a reduction what the picture says, else where the chunk comes from.
Json holds_json(const plan::Box& box, const Schedule& s) {
  if (internal::form_of(s.collective).reduces) return box.holds;
  switch (base_of(s.collective)) {
    case Collective::kAllGather:
    case Collective::kGather:
      return Json::array({s.chunks == s.ranks ? box.chunk : box.chunk * s.ranks / s.chunks});
    case Collective::kAllToAll:
      return Json::array({box.chunk / s.ranks});
    default:
      return Json::array({s.root});
  }
}

/// What a rank's buffer has before the first step, of the blocks that the page shows: those of In that lie where
/// they do in Out.
Json starts_json(const Schedule& s) {
  const internal::Form form = internal::form_of(s.collective);
  Json columns = Json::array();
  const bool reads = !form.only_root_reads || s.rank == s.root;
  if (!reads || form.in == internal::Holds::kNothing ||
      base_of(s.collective) == Collective::kAllToAll) {
    return columns;
  }
  for (int column = 0; column < columns_of(s); ++column) {
    const bool own = s.chunks != s.ranks || column == s.rank;
    if (form.in != internal::Holds::kOne || own) columns.push_back(column);
  }
  return columns;
}

Json box_json(const plan::Box& box, const Schedule& s, bool moves) {
  const Step& step = s.steps[box.step];
  Json json = {{"rank", box.rank}, {"level", box.level}, {"step", box.step}, {"name", box.label}};
  if (!moves) return json;
  Json writes = Json::array(), from = Json::array(), to = Json::array();
  int fetches = 0;
  for (const Operand& o : step.sources) {
    from.push_back(plan::operand_text(o, false));
    fetches += in_peer(o) || o.place == OperandKind::kPublished ? 1 : 0;
  }
  for (const Operand& o : step.destinations) {
    to.push_back(plan::operand_text(o, true));
    if (!is_out(o)) continue;
    writes.push_back(
        {in_peer(o) ? o.peer : s.rank, schedule::block_out(s.collective, o.chunk, s.ranks)});
  }
  json["chunk"] = box.chunk;
  json["from"] = std::move(from);
  json["to"] = std::move(to);
  json["holds"] = holds_json(box, s);
  json["finishes"] = box.finishes;
  json["sends"] = box.sends;
  json["fetches"] = fetches;
  json["writes"] = std::move(writes);
  return json;
}

Json arrow_json(const plan::Arrow& arrow) {
  constexpr const char* kBy[] = {"slot", "pull", "push"};
  return {arrow.from_rank, arrow.from_level, arrow.to_rank,
          arrow.to_level,  arrow.chunk,      kBy[static_cast<int>(arrow.by)]};
}

Json verification_json(const plan::ExplainedPlan& plan) {
  const plan::Verification& v = *plan.verification;
  return {{"verified", v.verdict.ok()},
          {"why", v.verdict.message()},
          {"moves", v.report.moves},
          {"rounds", v.report.rounds},
          {"rounds_carried_out", v.report.rounds_carried_out},
          {"rank_order", v.report.rank_order}};
}

}  // namespace

Result<Json> schedule_steps(const PageRequest& request) {
  const plan::PlanRequest operation = RONDO_TRY(operation_of(request, kMostRanks));
  const plan::ExplainedPlan plan = RONDO_TRY(plan::make_plan(operation));
  if (!plan.verification) return Status(Code::kUnavailable, plan.not_verified);
  if (!plan.verification->verdict.ok()) return plan.verification->verdict;
  const plan::Picture picture = plan::picture_of(plan.schedules);
  const Schedule& first = plan.schedules[0];
  const uint64_t block = plan.programs[0].channels.empty() ? 0 : plan.programs[0].channels[0].block;
  const auto box = [&](const plan::Box& b) {
    const Schedule& s = plan.schedules[static_cast<size_t>(b.rank)];
    return box_json(b, s, s.steps[b.step].action == schedule::Action::kMove);
  };
  return Json{{"collective", name(operation.collective)},
              {"algorithm", name(plan.algorithm)},
              {"why", plan.why},
              {"ranks", operation.ranks},
              {"hosts", plan.request.hosts->hosts()},
              {"reduces", internal::form_of(operation.collective).reduces},
              {"chunks", first.chunks},
              {"columns", columns_of(first)},
              {"chunk_bytes", block * size_of(operation.type)},
              {"equal_chunks", plan.equal_chunks},
              {"starts", list_of(plan.schedules, starts_json)},
              {"levels", picture.levels},
              {"boxes", list_of(picture.boxes, box)},
              {"arrows", list_of(picture.arrows, arrow_json)},
              {"bytes", list_of(plan.bytes, plan::bytes_json)},
              {"bytes_match", plan.bytes_match()},
              {"predicted_us", plan.predicted_us()},
              {"candidates", list_of(plan.candidates, plan::candidate_json)},
              {"verification", verification_json(plan)}};
}

}  // namespace rondo::explain
