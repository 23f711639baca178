// Lowering: from a schedule over symbolic chunks to a program of element ranges, rounds and slices.
// Pure arithmetic, and the same on every rank: nothing here may depend on the rank, or writer and
// reader would disagree about a slot.
#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "comm/base/refuse.hpp"
#include "comm/schedule/program.hpp"

namespace rondo::schedule {

uint64_t total(const BlockLayout& layout) {
  uint64_t sum = std::accumulate(layout.in_counts.begin(), layout.in_counts.end(), uint64_t{0});
  return std::accumulate(layout.out_counts.begin(), layout.out_counts.end(), sum);
}

uint64_t longest(const BlockLayout& layout) {
  uint64_t most = 0;
  for (const uint64_t count : layout.in_counts) most = std::max(most, count);
  for (const uint64_t count : layout.out_counts) most = std::max(most, count);
  return most;
}

const std::vector<uint64_t>& blocks_of(const BlockLayout& layout, Collective collective) {
  return internal::form_of(collective).in == internal::Holds::kEach ? layout.in_counts
                                                                    : layout.out_counts;
}

bool has_every_block(const BlockLayout& layout, Collective collective, size_t ranks) {
  const internal::Form form = internal::form_of(collective);
  const size_t ins = form.in == internal::Holds::kEach ? ranks : 0;
  const size_t outs = form.out == internal::Holds::kEach ? ranks : 0;
  return layout.in_counts.size() == ins && layout.in_offsets.size() == ins &&
         layout.out_counts.size() == outs && layout.out_offsets.size() == outs;
}
namespace {

uint64_t divide_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
uint64_t align_up(uint64_t value, uint64_t align) { return divide_up(value, align) * align; }

// A move that touches peers' buffers. Large enough that nothing is lost by dividing, small enough
// that a rank soon notices an error and lets go.
constexpr uint64_t kDirectSliceBytes = uint64_t{1} << 20;

using comm::refuse;

/// How the collective's data is divided: everything of Geometry that channels share.
Result<Geometry> divide(const Schedule& s, uint64_t count, uint64_t element_bytes, uint64_t align,
                        const BlockLayout& layout) {
  Geometry g{};
  if (is_varying(s.collective)) {
    if (!has_every_block(layout, s.collective, static_cast<size_t>(s.ranks))) {
      return refuse(std::string(name(s.collective)) +
                    ": the layout has not one block for every rank");
    }
    g.total = total(layout);
    g.block = longest(layout);
    return g;
  }
  const auto chunks = static_cast<uint64_t>(s.chunks);
  // One element less than the largest size, aligned, keeps every later sum of offsets in range.
  const uint64_t most = (std::numeric_limits<uint64_t>::max() / 2) / element_bytes - chunks * align;
  const internal::Form form = internal::form_of(s.collective);
  const bool blocks = form.in == internal::Holds::kEach || form.out == internal::Holds::kEach;
  if (s.collective == Collective::kBarrier) count = 1;
  if (count > (blocks ? most / chunks : most)) {
    return refuse(std::to_string(count) + " elements of " + std::to_string(element_bytes) +
                  " bytes for " + std::to_string(s.ranks) +
                  " ranks are more than can be addressed; pass a smaller count");
  }
  g.total = blocks ? count * chunks : count;
  // A block that the caller lays out is exact; one that only divides the work is a multiple of
  // cache lines, and none of them is longer than everything.
  g.block = blocks ? count : std::min(count, align_up(divide_up(count, chunks), align));
  return g;
}

/// Elements of chunk `chunk`.
uint64_t length_of(const Schedule& s, const Geometry& g, const BlockLayout& layout, int chunk) {
  const auto c = static_cast<uint64_t>(chunk), ranks = static_cast<uint64_t>(s.ranks);
  if (s.collective == Collective::kAllToAllV) {
    return chunk / s.ranks == s.rank ? layout.in_counts[c % ranks] : layout.out_counts[c / ranks];
  }
  if (is_varying(s.collective)) return blocks_of(layout, s.collective)[c];
  return c * g.block >= g.total ? 0 : std::min(g.block, g.total - c * g.block);
}

/// Where the chunk of an operand begins in its buffer.
uint64_t offset_of(const Schedule& s, const Geometry& g, const BlockLayout& layout,
                   const Operand& o) {
  const internal::Form form = internal::form_of(s.collective);
  if (in_slot(o) || (is_in(o) ? form.in : form.out) == internal::Holds::kOne) return 0;
  const auto block = static_cast<uint64_t>(o.chunk);
  if (!is_varying(s.collective)) return block * g.block;
  return is_in(o) ? layout.in_offsets[block] : layout.out_offsets[block];
}

/// Slices of a round. Half of a FIFO: the other half lets a rank run ahead of its reader, and keeps
/// `slices` below the depth, without which ranks that all pass data on could wait for each other.
uint32_t most_slices(const Limits& limits) { return std::max(1u, limits.depth / 2); }

/// Cuts a channel's range into slices and rounds.
void cut(Geometry& g, const Limits& limits, uint64_t align) {
  const uint64_t range = g.end - g.begin;
  if (range == 0) return;
  const uint64_t in_slot = limits.slot_bytes / limits.element_bytes;
  const uint64_t unit = std::min(align, in_slot);  // tiny slots: whatever fits
  const uint64_t most = in_slot / unit * unit;
  const uint64_t needed = divide_up(range, most), slices = most_slices(limits);
  // Few slices for little data (each costs a handshake), more as there is work to overlap, all of
  // them for several rounds.
  const uint64_t least = std::max<uint64_t>(limits.min_slice_bytes / limits.element_bytes, 1);
  const uint64_t wanted = std::clamp<uint64_t>(range / least, 1, slices);
  const uint64_t pieces = needed <= slices ? std::max(needed, wanted) : align_up(needed, slices);
  g.slice = std::min(most, align_up(divide_up(range, pieces), unit));
  g.slices = static_cast<uint32_t>(std::min(divide_up(range, g.slice), slices));
  g.window = g.slice * g.slices;
  g.rounds = divide_up(range, g.window);
}

/// all_to_all_v: the slices are alike on ranks that know nothing of each other's counts.
void cut_alike(Geometry& g, const Limits& limits, uint64_t align) {
  const uint64_t in_slot = limits.slot_bytes / limits.element_bytes;
  const uint64_t unit = std::min(align, in_slot);
  g.slice = in_slot / unit * unit;
  g.slices = most_slices(limits);
  g.window = g.slice * g.slices;
  g.rounds = divide_up(g.end - g.begin, g.window);
}

/// Without slots: one round at most, because signals count rounds. Between its slices the engine
/// looks for errors.
void cut_once(Geometry& g, uint64_t element_bytes, uint64_t align, uint64_t rounds) {
  const uint64_t range = std::max<uint64_t>(g.end - g.begin, 1);
  g.slice = std::min(range, align_up(divide_up(kDirectSliceBytes, element_bytes), align));
  g.slices = static_cast<uint32_t>(divide_up(range, g.slice));
  g.window = g.slice * g.slices;
  g.rounds = rounds;
}

void flatten(const Schedule& s, const Geometry& g, const BlockLayout& layout, Program& program) {
  program.instructions.reserve(s.steps.size());
  const auto locate = [&](const Operand& o) {
    program.operands.push_back({o, offset_of(s, g, layout, o)});
  };
  for (const Step& step : s.steps) {
    const bool moves = step.action == Action::kMove;
    program.instructions.push_back({.action = step.action,
                                    .flag = step.flag,
                                    .finishes = step.finishes,
                                    .sources = static_cast<uint16_t>(step.sources.size()),
                                    .destinations = static_cast<uint16_t>(step.destinations.size()),
                                    .peer = step.peer,
                                    .chunk = step.chunk,
                                    .first = static_cast<uint32_t>(program.operands.size()),
                                    .length = moves ? length_of(s, g, layout, step.chunk) : 0});
    std::for_each(step.sources.begin(), step.sources.end(), locate);
    std::for_each(step.destinations.begin(), step.destinations.end(), locate);
  }
}

Status check(const Schedule& s, const Limits& limits, bool slots) {
  const std::string what =
      std::string(name(s.algorithm)) + " " + std::string(name(s.collective)) + ": ";
  if (limits.element_bytes == 0) return refuse(what + "elements of 0 bytes");
  if (limits.channels < 1) {
    return refuse(what + std::to_string(limits.channels) + " channels; at least 1 is needed");
  }
  for (const Step& step : s.steps) {
    if (step.sources.size() > UINT16_MAX || step.destinations.size() > UINT16_MAX) {
      return {Code::kUnavailable, what + "a step of " + std::to_string(step.sources.size()) +
                                      " operands does not fit a program; choose ring"};
    }
  }
  if (!slots) return {};
  if (limits.slot_bytes < limits.element_bytes) {
    return refuse(what + "a slot of " + std::to_string(limits.slot_bytes) +
                  " bytes cannot hold an element of " + std::to_string(limits.element_bytes) +
                  "; use larger slots");
  }
  if (limits.depth < s.least_depth) {
    return refuse(what + "needs FIFOs of at least " + std::to_string(s.least_depth) +
                  " slots, not " + std::to_string(limits.depth));
  }
  return {};
}

}  // namespace

BlockLayout equal_layout(Collective collective, int ranks, uint64_t count) {
  BlockLayout layout;
  if (!is_varying(collective)) return layout;
  const std::vector<uint64_t> counts(static_cast<size_t>(ranks), count);
  std::vector<uint64_t> offsets;
  for (uint64_t r = 0; r < counts.size(); ++r) offsets.push_back(r * count);
  const internal::Form form = internal::form_of(collective);
  if (form.in == internal::Holds::kEach) layout.in_counts = counts, layout.in_offsets = offsets;
  if (form.out == internal::Holds::kEach) layout.out_counts = counts, layout.out_offsets = offsets;
  return layout;
}

const char* name_of(const Program& program, size_t instruction) {
  const Instruction& i = program.instructions[instruction];
  const auto first = program.operands.begin() + i.first;
  return name_of(Step{.action = i.action,
                      .flag = i.flag,
                      .finishes = i.finishes,
                      .peer = i.peer,
                      .chunk = i.chunk,
                      .sources = {first, first + i.sources},
                      .destinations = {first + i.sources, first + i.sources + i.destinations}});
}

Result<Program> lower(const Schedule& schedule, uint64_t count, const Limits& limits,
                      const BlockLayout& layout) {
  const auto signals =
      std::count_if(schedule.steps.begin(), schedule.steps.end(),
                    [](const Step& step) { return step.action == Action::kSignal; });
  const bool slots = schedule.ranks > 1 && signals == 0;
  RONDO_TRY(check(schedule, limits, slots));
  const uint64_t align =
      limits.align != 0 ? limits.align : std::max<uint64_t>(1, 64 / limits.element_bytes);
  Geometry divided = RONDO_TRY(divide(schedule, count, limits.element_bytes, align, layout));

  Program program;
  flatten(schedule, divided, layout, program);
  const bool empty = divided.total == 0;
  if (!empty) program.signals = static_cast<uint32_t>(signals);
  const bool alone = schedule.collective == Collective::kAllToAllV;  // see program.hpp
  const auto channels = static_cast<uint64_t>(limits.channels);
  const uint64_t share =
      alone ? divided.block : align_up(divide_up(divided.block, channels), align);
  for (uint64_t c = 0; c < channels; ++c) {
    Geometry g = divided;
    g.begin = c >= divide_up(g.block, std::max<uint64_t>(share, 1)) ? g.block : c * share;
    g.end = std::min(g.block, g.begin + share);
    if (!slots) {
      const bool needed = g.end > g.begin || program.signals > 0;
      cut_once(g, limits.element_bytes, align, needed && !schedule.steps.empty() ? 1 : 0);
    } else if (alone) {
      cut_alike(g, limits, align);
    } else {
      cut(g, limits, align);
    }
    program.channels.push_back(g);
  }
  return program;
}

Traffic traffic_of(const Program& program, int ranks) {
  Traffic traffic{};
  for (const Instruction& i : program.instructions) {
    if (i.action != Action::kMove) continue;
    for (uint32_t k = 0; k < uint32_t{i.sources} + i.destinations; ++k) {
      const Operand& o = program.operands[i.first + k];
      const bool published = o.place == OperandKind::kPublished, writes = k >= i.sources;
      if (writes && (in_slot(o) || in_peer(o))) traffic.elements_sent += i.length;
      if (!writes && (published || in_peer(o))) traffic.elements_fetched += i.length;
      const bool slot = writes && in_slot(o);
      const int readers = slot && published ? ranks - 1 : slot || in_peer(o) ? 1 : 0;
      traffic.elements_moved += i.length * static_cast<uint64_t>(readers);
    }
  }
  return traffic;
}

void add_crossings(const Program& program, int rank, const base::HostMap& hosts,
                   std::vector<Crossing>& crossings) {
  for (const Instruction& i : program.instructions) {
    for (uint32_t k = 0; k < i.destinations; ++k) {
      const Operand& o = program.operands[i.first + i.sources + k];
      if (o.place != OperandKind::kSlot || hosts.share_host(rank, o.peer)) continue;
      crossings[static_cast<size_t>(hosts.host_of(rank))].elements_out += i.length;
      crossings[static_cast<size_t>(hosts.host_of(o.peer))].elements_in += i.length;
    }
  }
}

}  // namespace rondo::schedule
