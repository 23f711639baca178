// See plan.hpp. Uses the functions that a communicator uses.
#include "comm/plan/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "comm/algorithms/algorithm.hpp"
#include "comm/base/counted.hpp"
#include "comm/base/refuse.hpp"

namespace rondo::plan {
namespace {

// Memory limit for the schedules of all ranks and their proof: beyond it they take minutes, and
// more than some machines have.
constexpr uint64_t kMostProofBytes = uint64_t{4} << 30;

using comm::refuse;

/// The count with the largest buffer that fits, as in rondo-perf.
uint64_t count_of(const PlanRequest& r) {
  const internal::Form form = internal::form_of(r.collective);
  const bool blocks = form.in == internal::Holds::kEach || form.out == internal::Holds::kEach;
  if (r.collective == Collective::kBarrier) return 0;
  return r.size_bytes / size_of(r.type) / (blocks ? static_cast<uint64_t>(r.ranks) : 1);
}

bool is_between_hosts(const PlanRequest& r) { return r.hosts && r.hosts->hosts() > 1; }

schedule::Limits limits_of(const PlanRequest& r) {
  return {
      .element_bytes = r.collective == Collective::kBarrier ? 1 : size_of(r.type),
      .slot_bytes = r.links.slot_bytes,
      .depth = r.links.slots,
      .min_slice_bytes = is_between_hosts(r) ? schedule::kLeastWireSlice : schedule::kLeastSlice};
}

Status check(const PlanRequest& r) {
  if (internal::is_rooted(r.collective) && (r.root < 0 || r.root >= r.ranks)) {
    return refuse(fmt::format("root {} is not one of {}", r.root, comm::counted(r.ranks, "rank")));
  }
  if (r.rank && (*r.rank < 0 || *r.rank >= r.ranks)) {
    return refuse(fmt::format("rank {} is not one of {}", *r.rank, comm::counted(r.ranks, "rank")));
  }
  if (internal::form_of(r.collective).reduces && !supports(r.collective, r.type, r.op)) {
    return refuse(fmt::format("there is no {} of {}{}", name(r.op), name(r.type),
                              is_scan(r.collective) ? " in a scan" : ""));
  }
  return {};
}

std::string reason(const PlanRequest& r, const std::vector<tuner::Candidate>& candidates,
                   const tuner::Candidate& chosen) {
  std::vector<const tuner::Candidate*> possible;
  for (const tuner::Candidate& c : candidates) {
    if (c.refusal == nullptr) possible.push_back(&c);
  }
  if (r.algorithm != Algorithm::kAuto) {
    std::string why = "asked for";
    if (chosen.refusal != nullptr)
      why += fmt::format(", although it is not possible here: {}", chosen.refusal);
    if (!possible.empty() && possible[0]->algorithm != r.algorithm) {
      why += fmt::format("; {} would be chosen", name(possible[0]->algorithm));
    }
    return why;
  }
  if (possible.size() < 2) return "the only one that is possible";
  return fmt::format("the cheapest that is possible; {}, the next, would take {:.2f} times as long",
                     name(possible[1]->algorithm),
                     possible[1]->price.total_us() / std::max(chosen.price.total_us(), 1e-9));
}

/// Candidates as if no buffer were mapped, for buffers that are: why a direct algorithm is not used
/// is what `mapped`, the candidates for these buffers, say.
void explain_direct(std::vector<tuner::Candidate>& candidates,
                    const std::vector<tuner::Candidate>& mapped) {
  for (tuner::Candidate& c : candidates) {
    if (!algorithms::traits_of(c.algorithm).needs.references) continue;
    c.refusal = "a staged algorithm is cheaper";
    for (const tuner::Candidate& m : mapped) {
      if (m.algorithm == c.algorithm && m.refusal != nullptr) c.refusal = m.refusal;
    }
  }
}

/// Sets algorithm, candidates and why.
Status choose(ExplainedPlan& plan) {
  const PlanRequest& r = plan.request;
  const uint64_t bytes = plan.count * size_of(r.type);
  // Chooses as for buffers in place, like a communicator, because only a rank itself knows whether
  // its buffers are in place. An all_to_all_v never is.
  const bool in_place = r.collective != Collective::kAllToAllV;
  tuner::Available available = r.available;
  available.type = r.type;
  available.hosts = r.hosts.get();
  const auto candidates = [&] {
    return tuner::candidates(r.collective, r.ranks, bytes, available, in_place, r.links);
  };
  plan.candidates = candidates();
  plan.algorithm = r.algorithm;
  if (r.algorithm == Algorithm::kAuto) {
    const auto choose = [&] {
      return tuner::choose(r.collective, r.ranks, bytes, available, in_place, r.links);
    };
    plan.algorithm = choose();
    if (available.references && !algorithms::traits_of(plan.algorithm).needs.references) {
      // Mapped buffers do not help here; staged algorithms are chosen as for any other memory.
      available.references = available.process_copy = false;
      const std::vector<tuner::Candidate> mapped = std::exchange(plan.candidates, candidates());
      plan.algorithm = choose();
      explain_direct(plan.candidates, mapped);
    }
  }
  for (tuner::Candidate& c : plan.candidates) {
    if (c.algorithm != plan.algorithm) continue;
    if (algorithms::traits_of(c.algorithm).needs.copies && available.copies) c.refusal = nullptr;
    plan.why = reason(r, plan.candidates, c);
    return {};
  }
  const char* const why = algorithms::refusal_on(plan.algorithm, *r.hosts);
  if (r.ranks > 1 && why != nullptr && algorithms::find(r.collective, plan.algorithm) != nullptr) {
    return {Code::kUnavailable, fmt::format("there is no {} by {} here: {} (see --ranks)",
                                            name(r.collective), name(plan.algorithm), why)};
  }
  return {Code::kUnavailable, fmt::format("there is no {} by {}: see the table in "
                                          "comm/algorithms/README.md",
                                          name(r.collective), name(plan.algorithm))};
}

/// The prediction for the same operation where all buffers are mapped; nothing if they are already,
/// or cannot be.
std::optional<double> on_library_memory(const ExplainedPlan& plan) {
  const tuner::Available& available = plan.request.available;
  const bool mappable = plan.request.reach != transport::cuda_ipc::Reach::kHost;
  if (available.references || !available.signals || !mappable || is_between_hosts(plan.request)) {
    return std::nullopt;
  }
  ExplainedPlan mapped{};
  mapped.request = plan.request;
  mapped.request.available.references = true;
  mapped.count = plan.count;
  if (!choose(mapped).ok()) return std::nullopt;
  return mapped.predicted_us();
}

Result<schedule::Schedule> schedule_of(const ExplainedPlan& plan, int rank) {
  const PlanRequest& r = plan.request;
  return algorithms::build(r.collective, plan.algorithm, r.hosts, rank, r.root);
}

Status add_rank(ExplainedPlan& plan, int rank) {
  const PlanRequest& r = plan.request;
  auto built = RONDO_TRY(schedule_of(plan, rank));
  auto program = RONDO_TRY(schedule::lower(
      built, plan.count, limits_of(r), schedule::equal_layout(r.collective, r.ranks, plan.count)));
  plan.schedules.push_back(std::move(built));
  plan.programs.push_back(std::move(program));
  return {};
}

/// An estimate of the memory of all ranks' schedules and their proof (symbolic.hpp holds most of
/// it), by rank 0's geometry. Builds schedules one by one and drops them, at most as many as the
/// limit allows.
Result<uint64_t> proof_bytes(const ExplainedPlan& plan) {
  constexpr uint64_t kPair = 96;    // a FIFO, and each rank's knowledge of the other
  constexpr uint64_t kPiece = 100;  // a step or an operand, in the schedule and in the program
  constexpr uint64_t kCell = 8;
  const PlanRequest& r = plan.request;
  const internal::Form form = internal::form_of(r.collective);
  const auto ranks = static_cast<uint64_t>(r.ranks);
  const uint64_t blocks = std::min(static_cast<uint64_t>(plan.schedules[0].chunks), ranks);
  const schedule::Geometry& g = plan.programs[0].channels[0];
  const uint64_t parts = std::min<uint64_t>(g.rounds, 4) * g.slices;  // that are executed
  const uint64_t value = 24 + ranks / 8;  // with the ranks that it holds
  const uint64_t inputs =
      (form.only_root_reads ? 1 : ranks) * (form.in == internal::Holds::kOne ? 1 : blocks);
  uint64_t bytes = ranks * ranks * kPair + inputs * value + 2 * ranks * blocks * parts * kCell;
  for (int rank = 0; rank < r.ranks && bytes <= kMostProofBytes; ++rank) {
    const auto built = RONDO_TRY(schedule_of(plan, rank));
    for (const schedule::Step& step : built.steps) {
      bytes += kPiece * (1 + step.sources.size() + step.destinations.size());
      if (step.sources.size() > 1) bytes += (step.sources.size() - 1) * parts * value;
    }
  }
  return bytes;
}

/// The larger buffer of a rank, in elements: S of the formulae.
uint64_t buffer_elements(const ExplainedPlan& plan) {
  const internal::Form form = internal::form_of(plan.request.collective);
  const auto ranks = static_cast<uint64_t>(plan.request.ranks);
  return std::max(internal::elements(form.in, plan.count, ranks),
                  internal::elements(form.out, plan.count, ranks));
}

/// Compares the bytes of `rank`'s program with the formula.
RankBytes bytes_of(const ExplainedPlan& plan, int rank, const schedule::Traffic& traffic) {
  const PlanRequest& r = plan.request;
  const algorithms::Volume volume = algorithms::volume_of(
      r.collective, plan.algorithm, *r.hosts, rank, internal::is_rooted(r.collective) ? r.root : 0);
  const uint64_t element = size_of(r.type);
  const auto size = static_cast<double>(buffer_elements(plan) * element);
  return {.rank = rank,
          .sent = traffic.elements_sent * element,
          .fetched = traffic.elements_fetched * element,
          .formula_sent = volume.sent.bytes(size, static_cast<uint64_t>(r.ranks)),
          .formula_fetched = volume.fetched.bytes(size, static_cast<uint64_t>(r.ranks)),
          .sent_text = std::string(volume.sent.text),
          .fetched_text = std::string(volume.fetched.text)};
}

/// Compares what crosses the wire with the formula.
WireBytes wire_bytes_of(const ExplainedPlan& plan) {
  const PlanRequest& r = plan.request;
  const uint64_t element = size_of(r.type);
  const base::HostMap& hosts = *r.hosts;
  WireBytes wire;
  if (const auto formula = algorithms::find(r.collective, plan.algorithm)->wire) {
    const algorithms::WireTerms terms = formula(
        {.p = static_cast<double>(r.ranks),
         .n = static_cast<double>(plan.count * element),
         .slot = static_cast<double>(r.links.slot_bytes),
         .on = algorithms::spread_of(hosts, internal::is_rooted(r.collective) ? r.root : 0)});
    wire.formula = terms.bytes;
    wire.text = terms.text;
  }
  if (plan.programs.size() != static_cast<size_t>(r.ranks)) return wire;
  std::vector<schedule::Crossing> crossings(static_cast<size_t>(hosts.hosts()));
  for (int rank = 0; rank < r.ranks; ++rank) {
    schedule::add_crossings(plan.programs[static_cast<size_t>(rank)], rank, hosts, crossings);
  }
  for (int host = 0; host < hosts.hosts(); ++host) {
    const schedule::Crossing& crossing = crossings[static_cast<size_t>(host)];
    wire.hosts.push_back({.host = host,
                          .ranks = static_cast<int>(hosts.ranks_on(host).size()),
                          .sent = crossing.elements_out * element,
                          .received = crossing.elements_in * element});
  }
  return wire;
}

void count_bytes(ExplainedPlan& plan) {
  const schedule::Geometry& g = plan.programs[0].channels[0];
  plan.equal_chunks = is_varying(plan.request.collective) ||
                      g.block * static_cast<uint64_t>(plan.schedules[0].chunks) == g.total;
  if (plan.request.collective == Collective::kBarrier || plan.request.ranks == 1) return;
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    plan.bytes.push_back(bytes_of(plan, plan.schedules[i].rank,
                                  schedule::traffic_of(plan.programs[i], plan.request.ranks)));
  }
  if (is_between_hosts(plan.request)) plan.wire = wire_bytes_of(plan);
}

void verify(ExplainedPlan& plan) {
  const PlanRequest& r = plan.request;
  schedule::LoweredOperation operation{.collective = r.collective,
                                       .root = r.root,
                                       .in_place = false,
                                       .count = plan.count,
                                       .programs = std::move(plan.programs),
                                       .hosts = r.hosts};
  if (is_varying(r.collective)) {
    operation.layouts.assign(static_cast<size_t>(r.ranks),
                             schedule::equal_layout(r.collective, r.ranks, plan.count));
  }
  auto report = schedule::verify({&operation, 1}, limits_of(r));
  plan.programs = std::move(operation.programs);
  plan.verification = Verification{.verdict = report.status(), .report = {}};
  if (!report.ok()) return;
  plan.verification->report = std::move(*report);
  // The bytes moved symbolically equal the program's, which are compared with the formula.
  for (RankBytes& b : plan.bytes) {
    const auto rank = static_cast<size_t>(b.rank);
    const schedule::VerifyReport& moved = plan.verification->report;
    if (moved.elements_sent[rank] * size_of(r.type) == b.sent &&
        moved.elements_fetched[rank] * size_of(r.type) == b.fetched) {
      continue;
    }
    plan.verification->verdict = Status(
        Code::kDataError, fmt::format("rank {} moved {} elements, but its program has {}", rank,
                                      moved.elements_sent[rank] + moved.elements_fetched[rank],
                                      (b.sent + b.fetched) / size_of(r.type)));
  }
  for (const HostBytes& h : plan.wire ? plan.wire->hosts : std::vector<HostBytes>()) {
    const schedule::Crossing& moved =
        plan.verification->report.crossings[static_cast<size_t>(h.host)];
    const uint64_t sent = moved.elements_out * size_of(r.type);
    const uint64_t received = moved.elements_in * size_of(r.type);
    if (sent == h.sent && received == h.received) continue;
    plan.verification->verdict =
        Status(Code::kDataError,
               fmt::format("host {} sent {} bytes to others and received {}, but its ranks' "
                           "programs have {} and {}",
                           h.host, sent, received, h.sent, h.received));
  }
}

}  // namespace

double ExplainedPlan::predicted_us() const {
  for (const tuner::Candidate& c : candidates) {
    if (c.algorithm == algorithm) return c.price.total_us();
  }
  return 0;
}

uint64_t WireBytes::busiest() const {
  uint64_t most = 0;
  for (const HostBytes& h : hosts) most = std::max({most, h.sent, h.received});
  return most;
}

bool ExplainedPlan::bytes_match() const {
  if (!equal_chunks) return true;
  // A formula's quotients may be rounded in the last bit.
  const bool crosses = wire && !wire->hosts.empty();
  const double off = crosses ? static_cast<double>(wire->busiest()) - wire->formula : 0;
  return std::abs(off) <= 1e-9 * (crosses ? wire->formula : 0) &&
         std::all_of(bytes.begin(), bytes.end(), [](const RankBytes& b) {
           return static_cast<double>(b.sent) == b.formula_sent &&
                  static_cast<double>(b.fetched) == b.formula_fetched;
         });
}

Result<ExplainedPlan> make_plan(const PlanRequest& request) {
  RONDO_TRY(check(request));
  ExplainedPlan plan{};
  plan.request = request;
  if (!request.hosts) {
    plan.request.hosts =
        std::make_shared<const base::HostMap>(base::HostMap::one_host(request.ranks));
  }
  plan.count = count_of(request);
  RONDO_TRY(choose(plan));
  plan.library_memory_us = on_library_memory(plan);
  RONDO_TRY(add_rank(plan, request.rank.value_or(0)));
  if (request.rank) {
    plan.not_verified = "only one rank was asked for";
  } else {
    const auto bytes = RONDO_TRY(proof_bytes(plan));
    if (bytes > kMostProofBytes) {
      plan.not_verified = fmt::format(
          "the schedules of {} and their proof would take more than {} GiB of memory, the most "
          "that "
          "is allowed: this is rank 0's alone; choose fewer ranks, or --rank K for another one's",
          comm::counted(request.ranks, "rank"), kMostProofBytes >> 30);
    }
    for (int r = 1; plan.not_verified.empty() && r < request.ranks; ++r) {
      RONDO_TRY(add_rank(plan, r));
    }
  }
  count_bytes(plan);
  if (plan.not_verified.empty()) verify(plan);
  return plan;
}

std::string ranks_text(const PlanRequest& r) {
  std::string text = comm::counted(r.ranks, "rank");
  if (!is_between_hosts(r)) return text;
  const base::HostMap& hosts = *r.hosts;
  std::vector<size_t> on;
  for (int host = 0; host < hosts.hosts(); ++host) on.push_back(hosts.ranks_on(host).size());
  text += fmt::format(" on {} hosts", hosts.hosts());
  if (std::count(on.begin(), on.end(), on[0]) == hosts.hosts()) {
    return text + fmt::format(" of {}", on[0]);
  }
  constexpr size_t kMostShown = 8;
  const size_t shown = std::min(on.size(), kMostShown);
  return text + fmt::format(" ({}{})",
                            fmt::join(on.begin(), on.begin() + static_cast<long>(shown), ", "),
                            shown < on.size() ? ", ..." : "");
}

std::string operand_text(const schedule::Operand& operand, bool destination) {
  switch (operand.place) {
    case schedule::OperandKind::kIn:
      return "In";
    case schedule::OperandKind::kOut:
      return "Out";
    case schedule::OperandKind::kSlot:
      return fmt::format("slot {} {}", destination ? "to" : "from", operand.peer);
    case schedule::OperandKind::kPublished:
      return destination ? "published slot" : fmt::format("published by {}", operand.peer);
    case schedule::OperandKind::kPeerIn:
      return fmt::format("In of {}", operand.peer);
    case schedule::OperandKind::kPeerOut:
      return fmt::format("Out of {}", operand.peer);
    case schedule::OperandKind::kIdentity:
      return "identity";
  }
  return "?";
}

}  // namespace rondo::plan
