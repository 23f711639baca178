// A plan as text, for people.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/counted.hpp"
#include "comm/plan/plan.hpp"

namespace rondo::plan {
namespace {

using comm::counted;
using schedule::Action;
using schedule::Operand;
using schedule::Schedule;
using schedule::Step;

// Longer lists are shortened to their beginning and end.
constexpr size_t kRanksShown = 8, kStepsShown = 40, kOperandsShown = 8;

void line(std::FILE* out, const std::string& text) { std::fprintf(out, "%s\n", text.c_str()); }

std::string operands_text(const std::vector<Operand>& operands, bool destinations) {
  std::string text;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands.size() > kOperandsShown && i == kOperandsShown - 1) {
      text += fmt::format("{}... {} more", destinations ? ", " : " + ", operands.size() - i);
      break;
    }
    if (i > 0) text += destinations ? ", " : " + ";
    text += operand_text(operands[i], destinations);
  }
  return text;
}

std::string step_text(const Schedule& s, size_t index) {
  const Step& step = s.steps[index];
  std::string text = fmt::format("  {:4}  {:21}", index, schedule::name_of(step));
  if (step.action == Action::kSignal) return text + "  all ranks";
  if (step.action == Action::kWait) return text + fmt::format("  rank {}", step.peer);
  std::string chunk = fmt::format("chunk {}", step.chunk);
  if (s.collective == Collective::kAllToAll && s.ranks > 1) {
    chunk = fmt::format("block {} to {}", step.chunk / s.ranks, step.chunk % s.ranks);
  }
  return text + fmt::format("  {:10}  {} -> {}{}", chunk, operands_text(step.sources, false),
                            operands_text(step.destinations, true),
                            step.finishes ? "   (finished)" : "");
}

/// A column of the candidates' table, left out where it says nothing of any of them.
struct Term {
  const char* title;
  double tuner::Price::*value;
  double nothing;
};
constexpr Term kTerms[] = {
    {"overhead", &tuner::Price::overhead_us, 0}, {"latency", &tuner::Price::latency_us, 0},
    {"slots", &tuner::Price::slots_us, 0},       {"memory", &tuner::Price::memory_us, 0},
    {"reduce", &tuner::Price::reduce_us, 0},     {"kernel", &tuner::Price::process_copy_us, 0},
    {"wire", &tuner::Price::wire_us, 0},         {"corrected", &tuner::Price::correction, 1}};

bool is_between_hosts(const ExplainedPlan& plan) { return plan.request.hosts->hosts() > 1; }

/// Between hosts there is a term more, and names are longer: narrower columns keep to 80.
std::string cell(const ExplainedPlan& plan, double us, bool sum = false) {
  if (is_between_hosts(plan)) return fmt::format(" {:8.1f}", us);
  return fmt::format(" {:{}.2f}", us, sum ? 11 : 9);
}

void print_candidates(std::FILE* out, const ExplainedPlan& plan) {
  // Without a price: those that cannot join hosts.
  const auto is_listed = [&](const tuner::Candidate& c) {
    return algorithms::refusal_on(c.algorithm, *plan.request.hosts) == nullptr;
  };
  const auto tells = [&](const Term& term) {
    return std::ranges::any_of(plan.candidates, [&](const tuner::Candidate& c) {
      return is_listed(c) && c.price.*term.value != term.nothing;
    });
  };
  std::vector<Term> terms;
  std::ranges::copy_if(kTerms, std::back_inserter(terms), tells);
  const bool corrected = tells(std::end(kTerms)[-1]);
  line(out, fmt::format("predicted time in us, the sum of its terms{}:",
                        corrected ? ", times the profile's correction" : ""));
  const bool narrow = is_between_hosts(plan);
  std::string head =
      fmt::format("{:{}} {:>{}}", "candidate", narrow ? 17 : 15, "sum", narrow ? 8 : 11);
  for (const Term& term : terms) head += fmt::format(" {:>{}}", term.title, narrow ? 8 : 9);
  line(out, head);
  std::map<std::string, std::string> refused;  // reason -> candidates
  for (const tuner::Candidate& c : plan.candidates) {
    std::string row = fmt::format("{:{}}", name(c.algorithm), narrow ? 17 : 15) +
                      cell(plan, c.price.total_us(), true);
    for (const Term& term : terms) row += cell(plan, c.price.*term.value);
    if (is_listed(c)) line(out, row);
    if (c.refusal == nullptr) continue;
    std::string& names = refused[c.refusal];
    names += (names.empty() ? "" : ", ") + std::string(name(c.algorithm));
  }
  for (const auto& [reason, names] : refused) {
    line(out, fmt::format("refused: {}: {}", reason, names));
  }
}

void print_schedule(std::FILE* out, const ExplainedPlan& plan, const Schedule& s) {
  line(out, fmt::format("rank {}: {}", s.rank, counted(s.steps.size(), "step")));
  for (size_t i = 0; i < s.steps.size(); ++i) {
    const size_t end = s.steps.size() - kStepsShown / 2;
    if (s.steps.size() > kStepsShown && !plan.request.rank && i == kStepsShown / 2) {
      line(out, fmt::format("   ...  {} more", end - i));
      i = end;
    }
    line(out, step_text(s, i));
  }
}

void print_schedules(std::FILE* out, const ExplainedPlan& plan) {
  const schedule::Geometry& g = plan.programs[0].channels[0];
  line(out, fmt::format("schedule: {} of {} elements, {} of {} of {} elements",
                        counted(plan.schedules[0].chunks, "chunk"), g.block,
                        counted(g.rounds, "round"), counted(g.slices, "slice"), g.slice));
  const size_t shown = plan.schedules.size() > kRanksShown ? 1 : plan.schedules.size();
  for (size_t i = 0; i < shown; ++i) print_schedule(out, plan, plan.schedules[i]);
  if (shown < plan.schedules.size()) {
    line(out, fmt::format("({} ranks more: --rank R shows one, --json all)",
                          plan.schedules.size() - shown));
  }
}

std::string against(uint64_t bytes, double formula, const std::string& text, bool exact) {
  const bool same = static_cast<double>(bytes) == formula;
  return fmt::format("{} {} {}{}", bytes,
                     same    ? "="
                     : exact ? "IS NOT"
                             : "~",
                     text, same ? "" : fmt::format(" = {:.1f}", formula));
}

void print_bytes(std::FILE* out, const ExplainedPlan& plan) {
  if (plan.bytes.empty()) return;
  line(out, fmt::format(
                "bytes that pass between ranks, by the program against the formula{}:",
                plan.equal_chunks ? "" : " (chunks differ in length, the formula does not know)"));
  for (size_t i = 0; i < plan.bytes.size(); ++i) {
    if (plan.bytes.size() > kRanksShown && i == kRanksShown) {
      line(out, fmt::format("  ({} ranks more: --json shows all)", plan.bytes.size() - i));
      return;
    }
    const RankBytes& b = plan.bytes[i];
    line(out,
         fmt::format("  rank {}: sends {}; fetches {}", b.rank,
                     against(b.sent, b.formula_sent, b.sent_text, plan.equal_chunks),
                     against(b.fetched, b.formula_fetched, b.fetched_text, plan.equal_chunks)));
  }
}

void print_wire(std::FILE* out, const ExplainedPlan& plan) {
  if (!plan.wire) return;
  const WireBytes& wire = *plan.wire;
  if (wire.hosts.empty()) {
    line(out, fmt::format("bytes that cross the busiest host's link, each way: {}{:.0f} by the "
                          "formula (not counted: it takes all ranks' programs)",
                          wire.text.empty() ? "" : wire.text + " = ", wire.formula));
    return;
  }
  line(out, "bytes that cross the hosts' links, by the programs:");
  for (size_t i = 0; i < wire.hosts.size() && i < kRanksShown; ++i) {
    const HostBytes& h = wire.hosts[i];
    line(out, fmt::format("  host {} ({}): sends {}, receives {}", h.host, counted(h.ranks, "rank"),
                          h.sent, h.received));
  }
  if (wire.hosts.size() > kRanksShown) {
    line(out, fmt::format("  ({} hosts more: --json shows all)", wire.hosts.size() - kRanksShown));
  }
  line(out, fmt::format("  the most, against the formula: {}",
                        against(wire.busiest(), wire.formula,
                                wire.text.empty() ? "the formula" : wire.text, plan.equal_chunks)));
}

void print_verification(std::FILE* out, const ExplainedPlan& plan) {
  if (!plan.verification) {
    line(out, "not verified: " + plan.not_verified);
    return;
  }
  const Verification& v = *plan.verification;
  if (!v.verdict.ok()) {
    line(out, "WRONG: " + v.verdict.message());
    return;
  }
  const uint64_t rounds = v.report.rounds, carried_out = v.report.rounds_carried_out;
  line(out, fmt::format("verified: {}, {}, {}{}{}", counted(plan.request.ranks, "rank"),
                        counted(v.report.moves, "move"), counted(rounds, "round"),
                        carried_out == rounds
                            ? ""
                            : fmt::format(" ({} carried out, the others being alike)", carried_out),
                        !internal::form_of(plan.request.collective).reduces ? ""
                        : v.report.rank_order ? "; folds in rank order"
                                              : "; folds in an order of its own"));
}

}  // namespace

void print(std::FILE* out, const ExplainedPlan& plan) {
  const PlanRequest& r = plan.request;
  const bool reduces = internal::form_of(r.collective).reduces;
  const std::string what =
      r.collective == Collective::kBarrier
          ? ""
          : fmt::format(" of {} bytes: count {}, {}{}{}", r.size_bytes, plan.count, name(r.type),
                        reduces ? fmt::format(", {}", name(r.op)) : "",
                        internal::is_rooted(r.collective) ? fmt::format(", root {}", r.root) : "");
  const std::string ranks =
      ranks_text(r) +
      (r.reach   ? " on GPUs"
       : r.cores ? fmt::format("{}{}", is_between_hosts(plan) ? ", each host of " : " on ",
                               counted(*r.cores, "core"))
                 : "");
  line(out, fmt::format("{}{}, {}, {}", name(r.collective), what, ranks,
                        is_between_hosts(plan) ? "a wire between hosts"
                        : !r.available.publish ? "a wire"
                        : r.reach ? r.available.references ? "within reach" : "through slots"
                        : r.available.references ? "library memory"
                                                 : "plain memory"));
  line(out, fmt::format("links: {}{}; {} slots of {} bytes", r.links.name,
                        is_between_hosts(plan) ? " and a wire between hosts" : "", r.links.slots,
                        r.links.slot_bytes));
  if (is_between_hosts(plan)) {
    const double one_way = r.links.wire_us_per_byte + r.links.wire_both_us_per_byte;
    const double each_way = one_way + r.links.wire_both_us_per_byte;
    line(out, fmt::format(
                  "between hosts: {:g} us, {:g} us for each message, {:.4g} GB/s for the "
                  "link of a host{}",
                  r.links.wire_alpha_us, r.links.wire_message_us, 1e-3 / std::max(one_way, 1e-12),
                  each_way > one_way
                      ? fmt::format(", {:.4g} GB/s each way for both at once", 1e-3 / each_way)
                      : ""));
  }
  line(out, "");
  print_candidates(out, plan);
  line(out, "");
  line(out, fmt::format("{}: {}; predicted {:.2f} us", name(plan.algorithm), plan.why,
                        plan.predicted_us()));
  if (plan.library_memory_us && *plan.library_memory_us < plan.predicted_us()) {
    line(out, fmt::format("{}, --memory library) would take {:.2f} us",
                          r.reach ? "memory within reach (registered, or of ranks that are threads"
                                  : "library memory (rondo::alloc",
                          *plan.library_memory_us));
  }
  line(out, "");
  print_schedules(out, plan);
  line(out, "");
  print_bytes(out, plan);
  print_wire(out, plan);
  print_verification(out, plan);
}

}  // namespace rondo::plan
