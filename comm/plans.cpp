#include "comm/plans.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/algorithms/algorithm.hpp"
#include "comm/device/device_operation.hpp"
#include "comm/tuner/cost.hpp"
#include "kernels/identity.hpp"
#include "rondo/log.hpp"

namespace rondo::comm {

using engine::Prepared;
using engine::Sharing;
using tuner::can_scale;

namespace {

// Shapes that vary without end (a count that is new every time) must not grow the table without
// end.
constexpr size_t kMostShapes = 4096;
// Results are written around the caches when the operation's buffers on this host exceed this part
// of the last-level cache.
constexpr double kNontemporalPart = 0.75;

bool is_direct(Algorithm algorithm) { return algorithms::traits_of(algorithm).needs.references; }

// Elements from the beginning of a buffer to the end of its last block.
uint64_t extent(const std::vector<uint64_t>& counts, const std::vector<uint64_t>& offsets) {
  uint64_t end = 0;
  for (size_t b = 0; b < counts.size(); ++b) {
    if (counts[b] > 0) end = std::max(end, offsets[b] + counts[b]);
  }
  return end;
}

// What the cost model calls the bytes of an operation: of one block, where there are blocks.
uint64_t model_bytes(const board::Fingerprint& call, size_t ranks) {
  const uint64_t count =
      is_varying(call.collective) ? (call.count + ranks - 1) / ranks : call.count;
  return count * size_of(call.type);
}

}  // namespace

Plans::Plans(const PlanLimits& limits) : limits_(limits) {
  if (limits_.hosts.ranks() == 0) limits_.hosts = base::HostMap::one_host(limits_.ranks);
  hosts_ = std::make_shared<const base::HostMap>(limits_.hosts);
}

Result<std::shared_ptr<const Prepared>> Plans::find(const Shape& shape) {
  if (is_varying(shape.call.collective)) return prepare(shape);
  const auto known = prepared_.find(shape);
  if (known != prepared_.end()) return known->second;
  auto made = RONDO_TRY(prepare(shape));
  if (prepared_.size() >= kMostShapes) prepared_.clear();  // operations in flight hold on to theirs
  prepared_.emplace(shape, made);
  if (limits_.rank == 0 && shows_log_level(LogLevel::kDebug)) {
    log(LogLevel::kDebug, say_choice(*made));
  }
  return made;
}

std::string Plans::say_choice(const Prepared& prepared) const {
  const board::Fingerprint& call = prepared.call;
  const auto priced = [&](const engine::ExecutionPlan& plan) {
    const tuner::Price price =
        tuner::price({.collective = call.collective,
                      .algorithm = plan.algorithm,
                      .ranks = limits_.ranks,
                      .bytes = model_bytes(call, static_cast<size_t>(limits_.ranks)),
                      .mapped = plan.direct,
                      .hosts = hosts_.get()},
                     limits_.profile);
    return fmt::format("{}, predicted {:.2f} us", name(plan.algorithm), price.total_us());
  };
  const bool always_direct =
      prepared.direct && (prepared.required || prepared.sharing == Sharing::kCopied);
  std::string text = fmt::format("{}: {}{}: {}", limits_.title, call.to_string(),
                                 prepared.in_place && prepared.in_bytes > 0 ? " in place" : "",
                                 priced(always_direct ? *prepared.direct : prepared.staged));
  if (prepared.direct && !always_direct) {
    text += fmt::format("; from {} memory on every rank {}",
                        limits_.on_device ? "registered" : "library", priced(*prepared.direct));
  }
  return text;
}

Result<std::shared_ptr<const Prepared>> Plans::prepare(const Shape& shape) const {
  const board::Fingerprint& call = shape.call;
  RONDO_TRY(check_scaling(call));
  auto prepared = std::make_shared<Prepared>();
  prepared->call = call;
  prepared->in_place = shape.in_place;
  prepared->hash = call.hash();
  prepared->layout = shape.layout;
  measure(shape, *prepared);
  choose_kernel(shape, *prepared);
  // Alike on all ranks: where the layout varies, one's In may be large enough and another's not. A
  // rank of another host cannot follow a reference.
  const bool may_refer =
      limits_.available.references && hosts_->hosts() == 1 && !prepared->scaled &&
      !(call.type == DataType::kBool && is_scan(call.collective)) &&
      (prepared->in_bytes >= engine::kReferenceBytes || is_varying(call.collective));
  prepared->sharing = may_refer ? Sharing::kReferences : Sharing::kSlots;
  const Algorithm forced = forced_algorithm(call);
  RONDO_TRY(forced == Algorithm::kAuto ? choose_automatically(shape, *prepared)
                                       : choose_forced(shape, forced, *prepared));
  return std::shared_ptr<const Prepared>(std::move(prepared));
}

// What the operation takes of this rank's buffers.
void Plans::measure(const Shape& shape, Prepared& prepared) const {
  const board::Fingerprint& call = shape.call;
  const auto ranks = static_cast<size_t>(limits_.ranks);
  const internal::Form form = internal::form_of(call.collective);
  uint64_t in = internal::elements(form.in, call.count, ranks),
           out = internal::elements(form.out, call.count, ranks);
  if (is_varying(call.collective)) {
    const schedule::BlockLayout& layout = shape.layout;
    const auto rank = static_cast<size_t>(limits_.rank);
    in = form.in == internal::Holds::kOne ? layout.out_counts[rank]
                                          : extent(layout.in_counts, layout.in_offsets);
    out = form.out == internal::Holds::kOne ? layout.in_counts[rank]
                                            : extent(layout.out_counts, layout.out_offsets);
  }
  prepared.element_bytes = size_of(call.type);
  prepared.in_bytes = in * prepared.element_bytes;
  prepared.out_bytes = out * prepared.element_bytes;
  const double touched = static_cast<double>((prepared.in_bytes + prepared.out_bytes) * ranks);
  // In place the result's lines have just been read: writing around the cache would gain nothing.
  prepared.nontemporal =
      !shape.in_place &&
      touched > kNontemporalPart * static_cast<double>(limits_.profile.llc_bytes);
}

void Plans::choose_kernel(const Shape& shape, Prepared& prepared) const {
  const board::Fingerprint& call = shape.call;
  // A rank with one input folds nothing, but its bools become 0 or 1, too: by a sum of one, scaled
  // by 1. (In an exclusive scan rank 0 does so for rank 1, to which it sends.)
  const bool alone = internal::contributors(call.collective, limits_.rank, limits_.ranks) <= 1 &&
                     call.type == DataType::kBool && internal::form_of(call.collective).reduces;
  // A sum that may wrap is divided like any other, but the kernel of an average does not wrap.
  const bool wraps = call.op == ReduceOp::kAvg && limits_.wrapping_averages;
  prepared.op = alone ? ReduceOp::kMulSum : wraps ? ReduceOp::kSum : call.op;
  prepared.function = kernels::move_function(call.type, prepared.op);
  prepared.scaled = prepared.op == ReduceOp::kMulSum;
  prepared.divisor = call.op == ReduceOp::kAvg ? static_cast<uint32_t>(limits_.ranks) : 1;
  prepared.identity = kernels::identity_bits(call.type, call.op);
}

// A rank folds its own input as it is, and others' as they were rounded.
Status Plans::check_scaling(const board::Fingerprint& call) const {
  if (call.op != ReduceOp::kMulSum) return {};
  if (!can_scale(call.type, call.algorithm)) {
    return {Code::kUnavailable,
            fmt::format("there is no scaled sum of {} by {}: a rank folds its own input as it "
                        "is, and others' as they were rounded",
                        name(call.type), name(call.algorithm))};
  }
  // A direct algorithm could, but may have to fall back to slots.
  if (limits_.available.rank_order_only && is_floating(call.type) && size_of(call.type) < 4) {
    return {Code::kUnavailable,
            fmt::format("there is no reproducible scaled sum of {}: a rank folds its own input "
                        "as it is, and others' as they were rounded",
                        name(call.type))};
  }
  return {};
}

// By the call, or else by the communicator, for every operation that has it; kAuto: by neither.
Algorithm Plans::forced_algorithm(const board::Fingerprint& call) const {
  const Algorithm forced = limits_.algorithm;
  if (call.algorithm != Algorithm::kAuto || forced == Algorithm::kAuto || limits_.ranks == 1) {
    return call.algorithm;
  }
  const bool possible =
      algorithms::find(call.collective, forced) != nullptr &&
      algorithms::refusal_on(forced, *hosts_) == nullptr && in_allowed_order(call, forced) &&
      (!algorithms::traits_of(forced).needs.publish || limits_.available.publish) &&
      (call.op != ReduceOp::kMulSum || can_scale(call.type, forced));
  return possible ? forced : Algorithm::kAuto;
}

Result<engine::ExecutionPlan> Plans::make(const Shape& shape, Algorithm algorithm, int rank) const {
  const board::Fingerprint& call = shape.call;
  auto built = RONDO_TRY(algorithms::build(call.collective, algorithm, hosts_, rank, call.root));
  const algorithms::CollectiveTraits* traits = algorithms::find(call.collective, algorithm);
  const auto plan = [&](schedule::Program program, bool by_ll) {
    return engine::ExecutionPlan{.algorithm = algorithm,
                                 .program = std::move(program),
                                 .direct = is_direct(algorithm),
                                 .by_ll = by_ll,
                                 .chunks = built.chunks,
                                 .touched_in = traits->in,
                                 .touched_out = traits->out};
  };
  if (limits_.ll_bytes > 0 && limits_.ranks > 1 &&
      algorithms::may_go_by_ll(call.collective, algorithm)) {
    const size_t element = size_of(call.type);
    auto small = schedule::lower(built, call.count,
                                 engine::ll_limits(element, limits_.channels, limits_.ll_bytes),
                                 shape.layout);
    if (small.ok() && engine::fits_ll(*small, element, limits_.ll_bytes)) {
      return plan(std::move(*small), true);
    }
  }
  const bool publishes = algorithms::traits_of(algorithm).needs.publish;
  const size_t least = hosts_->hosts() > 1    ? schedule::kLeastWireSlice
                       : limits_.ll_bytes > 0 ? schedule::kLeastDeviceSlice
                                              : schedule::kLeastSlice;
  auto program = RONDO_TRY(
      schedule::lower(built, call.count,
                      {.element_bytes = size_of(call.type),
                       .slot_bytes = publishes ? limits_.publish_slot_bytes : limits_.slot_bytes,
                       .depth = publishes ? limits_.publish_depth : limits_.depth,
                       .channels = limits_.channels,
                       .min_slice_bytes = least},
                      shape.layout));
  return plan(std::move(program), false);
}

bool Plans::averages_exactly(const board::Fingerprint& call) const {
  return tuner::averages_integers(call.type, call.op) && !limits_.wrapping_averages;
}

bool Plans::in_allowed_order(const board::Fingerprint& call, Algorithm algorithm) const {
  const bool rank_order_only = limits_.available.rank_order_only || averages_exactly(call);
  return !rank_order_only || limits_.ranks == 1 || !internal::form_of(call.collective).reduces ||
         algorithms::folds_in_rank_order(call.collective, algorithm, call.type);
}

Status Plans::choose_forced(const Shape& shape, Algorithm forced, Prepared& prepared) const {
  const algorithms::Needs& needs = algorithms::traits_of(forced).needs;
  const std::string_view what = name(shape.call.collective), how = name(forced);
  if (algorithms::find(shape.call.collective, forced) == nullptr) {
    return {Code::kUnavailable, fmt::format("there is no {} by {}", what, how)};
  }
  const char* const why = algorithms::refusal_on(forced, *hosts_);
  if (limits_.ranks > 1 && why != nullptr) {
    return {Code::kUnavailable, fmt::format("there is no {} by {} here: {}", what, how, why)};
  }
  if (!in_allowed_order(shape.call, forced)) {
    if (averages_exactly(shape.call)) {
      return {Code::kUnavailable,
              fmt::format("there is no {} of {} averages by {}: its partial sums could overflow; "
                          "choose auto, two-shot or star, or a sum",
                          what, name(shape.call.type), how)};
    }
    return {Code::kUnavailable,
            fmt::format("{} by {} does not fold in rank order, as a reproducible communicator must",
                        what, how)};
  }
  const tuner::Available& can = limits_.available;
  if (limits_.ranks > 1 && needs.copies && !can.copies) {
    return {
        Code::kUnavailable,
        fmt::format("there is no {} by {} here: the copies are a GPU's, between GPUs that access "
                    "each other: it needs a communicator with Config::device",
                    what, how)};
  }
  if (limits_.ranks > 1 &&
      ((needs.publish && !can.publish) || (needs.references && !can.references) ||
       (needs.signals && !can.signals))) {
    return {
        Code::kUnavailable,
        fmt::format(
            "{} by {} needs memory that the ranks share. A paced link has no slots that several "
            "ranks read, and GPUs share none without access to each other, or between "
            "processes, unless memory has been registered",
            what, how)};
  }
  if (shape.in_place && shape.call.count > 0 &&
      !algorithms::is_in_place_safe(shape.call.collective, forced)) {
    return {Code::kInvalidArgument, fmt::format("{} by {} cannot be done in place", what, how)};
  }
  auto made = RONDO_TRY(make(shape, forced, limits_.rank));
  if (is_direct(forced) && limits_.ranks > 1 && shape.call.count > 0) {
    const bool copies = can.process_copy && !internal::form_of(shape.call.collective).reduces;
    prepared.sharing = copies ? Sharing::kCopied : Sharing::kMapped;
    prepared.required = true;
    prepared.direct = std::make_unique<engine::ExecutionPlan>(made);
    // The way of a graph that is replayed after the end of its buffers' registration.
    if (limits_.on_device) {
      made = RONDO_TRY(make(shape, cheapest(shape, false, false), limits_.rank));
    }
  }
  prepared.staged = std::move(made);
  return {};
}

Algorithm Plans::cheapest(const Shape& shape, bool references, bool process_copy) const {
  const board::Fingerprint& call = shape.call;
  tuner::Available available = limits_.available;
  available.references = available.references && references;
  available.process_copy = available.process_copy && process_copy;
  available.type = call.type;
  available.hosts = hosts_.get();
  if (call.op == ReduceOp::kMulSum) available.scaled = call.type;
  available.rank_order_only = available.rank_order_only || averages_exactly(call);
  // As if in place: whether a rank's buffers are is its own affair, and ranks must choose alike.
  const bool in_place = call.collective != Collective::kAllToAllV;  // which never is
  const uint64_t bytes = model_bytes(call, static_cast<size_t>(limits_.ranks));
  return tuner::choose(call.collective, limits_.ranks, bytes, available, in_place, limits_.profile);
}

Status Plans::choose_automatically(const Shape& shape, Prepared& prepared) const {
  const board::Fingerprint& call = shape.call;
  auto staged = RONDO_TRY(make(shape, cheapest(shape, false, false), limits_.rank));
  prepared.staged = std::move(staged);
  const Algorithm direct = cheapest(shape, true, false);
  if (limits_.ranks == 1 || call.count == 0 || !is_direct(direct)) return {};
  auto made = RONDO_TRY(make(shape, direct, limits_.rank));
  prepared.direct = std::make_unique<engine::ExecutionPlan>(std::move(made));
  prepared.sharing = cheapest(shape, false, true) == direct ? Sharing::kCopied : Sharing::kMapped;
  prepared.withheld = shape.in_place && !algorithms::is_in_place_safe(call.collective, direct);
  return {};
}

Result<uint64_t> Plans::most_bytes_moved(const Shape& shape, Algorithm algorithm) const {
  uint64_t most = 0;
  for (int rank = 0; rank < limits_.ranks; ++rank) {
    auto plan = RONDO_TRY(make(shape, algorithm, rank));
    const uint64_t elements = schedule::traffic_of(plan.program, limits_.ranks).elements_moved;
    most = std::max(most, elements * size_of(shape.call.type));
  }
  return most;
}

}  // namespace rondo::comm
