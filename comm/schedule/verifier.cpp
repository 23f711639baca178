// What can be checked without executing: the geometry, and the form of every instruction. Then the
// execution, channel by channel, by symbolic.hpp: channels have FIFOs and elements of their own and
// cannot influence each other.
#include "comm/schedule/verifier.hpp"

#include <algorithm>
#include <string>

#include "comm/schedule/symbolic.hpp"

namespace rondo::schedule {
namespace {

std::string text(uint64_t value) { return std::to_string(value); }
Status wrong(const std::string& what) { return {Code::kDataError, what}; }

bool same(const Geometry& a, const Geometry& b) {
  return a.total == b.total && a.block == b.block && a.in_stride == b.in_stride &&
         a.out_stride == b.out_stride && a.begin == b.begin && a.end == b.end &&
         a.window == b.window && a.slice == b.slice && a.slices == b.slices && a.rounds == b.rounds;
}

bool uses_slots(const Program& program) {
  return std::any_of(program.operands.begin(), program.operands.end(), [](const Operand& o) {
    return o.place == Place::kSlot || o.place == Place::kPublished;
  });
}

/// The division of the data that all channels share.
Status check_division(const Operation& op, const Geometry& g) {
  const uint64_t ranks = op.programs.size();
  const Form form = form_of(op.collective);
  const bool blocks = form.in == Holds::kEach || form.out == Holds::kEach;
  const uint64_t most_chunks =
      form.in == Holds::kEach && form.out == Holds::kEach ? ranks * ranks : ranks;
  const uint64_t total = op.collective == Collective::kBarrier ? 1
                         : blocks                              ? op.count * most_chunks
                                                               : op.count;
  if (g.total != total) {
    return wrong("the geometry has " + text(g.total) + " elements, but the collective has " +
                 text(total));
  }
  if (blocks && g.block != op.count) {
    return wrong("chunks of " + text(g.block) + " elements, but each rank's block has " +
                 text(op.count));
  }
  if (g.total > 0 && (g.block == 0 || (g.total - 1) / g.block >= most_chunks)) {
    return wrong("more than " + text(most_chunks) + " chunks of " + text(g.block) + " elements");
  }
  if (g.in_stride != (form.in == Holds::kOne ? 0 : g.block) ||
      g.out_stride != (form.out == Holds::kOne ? 0 : g.block)) {
    return wrong("chunks lie " + text(g.in_stride) + " elements apart in In and " +
                 text(g.out_stride) + " in Out, which does not fit chunks of " + text(g.block));
  }
  return {};
}

Status check_channel(const Geometry& g, const std::string& where, bool slots,
                     const Limits& limits) {
  if (g.begin > g.end || g.end > g.block) {
    return wrong(where + "covers elements " + text(g.begin) + " to " + text(g.end) +
                 " of a chunk of " + text(g.block));
  }
  const uint64_t range = g.end - g.begin;
  if (range == 0) return {};
  if (g.slice == 0 || g.slices == 0 || g.window != g.slice * g.slices) {
    return wrong(where + "has rounds of " + text(g.window) + " elements, but walks " +
                 text(g.slices) + " slices of " + text(g.slice));
  }
  const uint64_t rounds = (range - 1) / g.window + 1;
  if (g.rounds < rounds) {
    return wrong(where + "ends after " + text(g.rounds) + " rounds of " + text(g.window) +
                 " elements and misses the last of its " + text(range));
  }
  if (g.rounds > rounds) {
    return wrong(where + "overruns: " + text(g.rounds) + " rounds of " + text(g.window) +
                 " elements for a range of " + text(range));
  }
  if (slots && std::min(g.slice, range) * limits.element_bytes > limits.slot_bytes) {
    return wrong(where + "overruns its slots: a slice of " + text(g.slice) + " elements takes " +
                 text(g.slice * limits.element_bytes) + " bytes, a slot has " +
                 text(limits.slot_bytes));
  }
  return {};
}

/// The channels' ranges must tile a block.
Status check_tiling(const std::vector<Geometry>& channels) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const Geometry& g : channels) {
    if (g.end > g.begin) ranges.emplace_back(g.begin, g.end);
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at) {
      return wrong("channels " + std::string(begin < at ? "overlap" : "leave a gap") +
                   " at element " + text(std::min(begin, at)) + " of every chunk");
    }
    at = end;
  }
  if (at != channels[0].block) {
    return wrong("channels end at element " + text(at) + " of chunks of " +
                 text(channels[0].block));
  }
  return {};
}

Status check_geometry(const Operation& op, const std::string& what, const Limits& limits) {
  const std::vector<Geometry>& channels = op.programs[0].channels;
  if (channels.empty()) return wrong(what + "has no channels");
  // One rank alone has no barrier to keep.
  const bool nothing_to_do = op.programs.size() == 1 && op.collective == Collective::kBarrier;
  bool slots = false;
  for (size_t r = 0; r < op.programs.size(); ++r) {
    const std::vector<Geometry>& other = op.programs[r].channels;
    if (!std::equal(channels.begin(), channels.end(), other.begin(), other.end(), same)) {
      return wrong(what + "rank " + text(r) + " has another geometry than rank 0");
    }
    slots = slots || uses_slots(op.programs[r]);
  }
  for (size_t c = 0; c < channels.size(); ++c) {
    RONDO_RETURN_IF_ERROR(check_division(op, channels[c]));
    if (nothing_to_do) continue;
    RONDO_RETURN_IF_ERROR(
        check_channel(channels[c], what + "channel " + text(c) + " ", slots, limits));
  }
  return check_tiling(channels);
}

/// Which chunk an operand of a move of `chunk` must name.
int chunk_of(Collective collective, Place place, int chunk, int ranks) {
  if (place == Place::kIn || place == Place::kPeerIn) return block_in(collective, chunk, ranks);
  if (place == Place::kOut || place == Place::kPeerOut) return block_out(collective, chunk, ranks);
  return chunk;
}

/// What is wrong with an operand, or empty.
std::string operand_fault(Collective collective, const Operand& o, bool destination, int rank,
                          int ranks, int chunk) {
  const bool own = o.place == Place::kIn || o.place == Place::kOut ||
                   (o.place == Place::kPublished && destination);
  if (!own && (o.peer < 0 || o.peer >= ranks || o.peer == rank)) {
    return "names peer " + std::to_string(o.peer) + ", which is not another of the " +
           std::to_string(ranks) + " ranks";
  }
  if (o.chunk != chunk_of(collective, o.place, chunk, ranks)) {
    return "is about chunk " + std::to_string(chunk) + ", but has an operand of chunk " +
           std::to_string(o.chunk);
  }
  if (collective == Collective::kAllToAll) {
    const int owner = own ? rank : o.peer;
    const bool in = o.place == Place::kIn || o.place == Place::kPeerIn;
    const bool out = o.place == Place::kOut || o.place == Place::kPeerOut;
    if ((in && chunk / ranks != owner) || (out && chunk % ranks != owner)) {
      return "is about chunk " + std::to_string(chunk) + ", which rank " + std::to_string(owner) +
             (in ? " does not send" : " does not get");
    }
  }
  if (destination && (o.place == Place::kIn || o.place == Place::kPeerIn)) return "writes into In";
  return {};
}

/// Two equal operands on one side would take two slots in one move, or fold a contribution twice.
bool repeats(std::span<const Operand> operands) {
  if (operands.size() < 2) return false;
  std::vector<std::pair<Place, int32_t>> keys;
  keys.reserve(operands.size());
  for (const Operand& o : operands) {
    const bool own = o.place == Place::kIn || o.place == Place::kOut;
    keys.emplace_back(o.place, own ? -1 : o.peer);
  }
  std::sort(keys.begin(), keys.end());
  return std::adjacent_find(keys.begin(), keys.end()) != keys.end();
}

/// What is wrong with an instruction as such, or empty.
std::string instruction_fault(const Operation& op, int rank, const Instruction& i) {
  const Program& program = op.programs[static_cast<size_t>(rank)];
  const int ranks = static_cast<int>(op.programs.size());
  if (i.action == Action::kSignal) return {};
  if (i.action == Action::kWait) {
    if (i.peer >= 0 && i.peer < ranks && i.peer != rank) return {};
    return "waits for rank " + std::to_string(i.peer) + ", which is not a peer";
  }
  if (i.sources == 0 || i.destinations == 0 || i.chunk < 0 ||
      uint64_t{i.first} + i.sources + i.destinations > program.operands.size()) {
    return "moves " + text(i.sources) + " sources to " + text(i.destinations) +
           " destinations of chunk " + std::to_string(i.chunk) + ", which is no move";
  }
  const std::span<const Operand> all(program.operands.data() + i.first,
                                     size_t{i.sources} + i.destinations);
  for (size_t o = 0; o < all.size(); ++o) {
    std::string fault = operand_fault(op.collective, all[o], o >= i.sources, rank, ranks, i.chunk);
    if (!fault.empty()) return fault;
  }
  if (repeats(all.first(i.sources)) || repeats(all.subspan(i.sources))) {
    return "names the same place twice";
  }
  const bool reduces = form_of(op.collective).reduces || op.collective == Collective::kBarrier;
  return i.finishes && !reduces ? "finishes a reduction where none is" : "";
}

Status check_signals(const Operation& op, const std::string& what) {
  for (size_t r = 0; r < op.programs.size(); ++r) {
    const Program& program = op.programs[r];
    uint64_t signals = 0;
    for (const Instruction& i : program.instructions) signals += i.action == Action::kSignal;
    for (const Geometry& g : program.channels) {
      if (signals * g.rounds != program.signals || program.signals != op.programs[0].signals) {
        return wrong(what + "rank " + text(r) + " signals " + text(signals * g.rounds) +
                     " times, declares " + text(program.signals) + ", and rank 0 declares " +
                     text(op.programs[0].signals) + ": counters would drift apart");
      }
    }
  }
  return {};
}

Status check_form(std::span<const Operation> operations, const Limits& limits) {
  for (size_t k = 0; k < operations.size(); ++k) {
    const Operation& op = operations[k];
    const std::string what =
        "operation " + text(k) + " (" + std::string(name(op.collective)) + "): ";
    if (op.programs.empty() || op.programs.size() != operations[0].programs.size()) {
      return wrong(what + "programs for " + text(op.programs.size()) +
                   " ranks, but operation 0 has " + text(operations[0].programs.size()));
    }
    RONDO_RETURN_IF_ERROR(check_geometry(op, what, limits));
    for (size_t r = 0; r < op.programs.size(); ++r) {
      for (size_t i = 0; i < op.programs[r].instructions.size(); ++i) {
        const std::string fault =
            instruction_fault(op, static_cast<int>(r), op.programs[r].instructions[i]);
        if (!fault.empty()) {
          return wrong(what + "rank " + text(r) + ", step " + text(i) + " " + fault);
        }
      }
    }
    RONDO_RETURN_IF_ERROR(check_signals(op, what));
  }
  return {};
}

}  // namespace

Result<Operation> make_operation(const Shape& shape, const Limits& limits) {
  if (shape.in_place && !is_in_place_safe(shape.collective, shape.algorithm)) {
    return Status(Code::kUnavailable, std::string(name(shape.algorithm)) + " " +
                                          std::string(name(shape.collective)) +
                                          " cannot be used in place; choose another algorithm");
  }
  Operation op{.collective = shape.collective,
               .root = shape.root,
               .in_place = shape.in_place,
               .count = shape.count,
               .programs = {}};
  for (int r = 0; r < shape.ranks; ++r) {
    Result<Schedule> s = build(shape.collective, shape.algorithm, shape.ranks, r, shape.root);
    if (!s.ok()) return s.status();
    Result<Program> program = lower(*s, shape.count, limits);
    if (!program.ok()) return program.status();
    op.programs.push_back(std::move(*program));
  }
  return op;
}

Result<VerifyReport> verify(std::span<const Operation> operations, const Limits& limits) {
  VerifyReport report;
  if (operations.empty()) return report;
  RONDO_RETURN_IF_ERROR(check_form(operations, limits));
  report.elements_sent.resize(operations[0].programs.size());
  report.elements_fetched.resize(operations[0].programs.size());
  size_t channels = 0;
  for (const Operation& op : operations) {
    channels = std::max(channels, op.programs[0].channels.size());
  }
  for (size_t c = 0; c < channels; ++c) {
    SymbolicChannel channel(operations, c, limits.depth, report);
    RONDO_RETURN_IF_ERROR(channel.run());
  }
  return report;
}

}  // namespace rondo::schedule
