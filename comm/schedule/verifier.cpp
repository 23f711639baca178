// What can be checked without executing: the geometry, and the form of every instruction. Then the
// execution, channel by channel, by symbolic.hpp: channels have FIFOs and elements of their own and
// cannot influence each other.
#include "comm/schedule/verifier.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "comm/schedule/symbolic.hpp"

namespace rondo::schedule {
namespace {

std::string text(uint64_t value) { return std::to_string(value); }

bool same_slices(const Geometry& a, const Geometry& b) {
  return a.window == b.window && a.slice == b.slice && a.slices == b.slices;
}
bool same(const Geometry& a, const Geometry& b) {
  return a.total == b.total && a.block == b.block && a.begin == b.begin && a.end == b.end &&
         same_slices(a, b) && a.rounds == b.rounds;
}

/// Where block `block` of `rank`'s buffer begins, as the collective is defined.
uint64_t block_offset(const LoweredOperation& op, int rank, bool out, int block) {
  const internal::Form form = internal::form_of(op.collective);
  if ((out ? form.out : form.in) == internal::Holds::kOne) return 0;
  const auto b = static_cast<size_t>(block);
  if (!is_varying(op.collective)) return b * op.programs[0].channels[0].block;
  const BlockLayout& layout = op.layouts[static_cast<size_t>(rank)];
  return out ? layout.out_offsets[b] : layout.in_offsets[b];
}

/// What the ranks say about the layout of a _v collective must fit together.
Status check_layouts(const LoweredOperation& op) {
  const size_t ranks = op.programs.size();
  if (op.layouts.size() != (is_varying(op.collective) ? ranks : 0)) {
    return wrong(text(op.layouts.size()) + " layouts for " + text(ranks) + " ranks");
  }
  for (size_t r = 0; r < op.layouts.size(); ++r) {
    const BlockLayout& layout = op.layouts[r];
    if (!has_every_block(layout, op.collective, ranks)) {
      return wrong("the layout of rank " + text(r) + " has not one block for every rank");
    }
    if (op.collective != Collective::kAllToAllV) {
      if (layout == op.layouts[0]) continue;
      return wrong("rank " + text(r) + " has another layout than rank 0");
    }
    for (size_t p = 0; p < ranks; ++p) {
      if (layout.in_counts[p] == op.layouts[p].out_counts[r]) continue;
      return wrong("rank " + text(r) + " sends rank " + text(p) + " " + text(layout.in_counts[p]) +
                   " elements, but that expects " + text(op.layouts[p].out_counts[r]));
    }
  }
  return {};
}

bool uses_slots(const Program& program) {
  return std::any_of(program.operands.begin(), program.operands.end(), in_slot);
}

/// The division of the data that all channels share.
Status check_division(const LoweredOperation& op, size_t rank, const Geometry& g) {
  if (is_varying(op.collective)) {
    const BlockLayout& layout = op.layouts[rank];
    const uint64_t total = schedule::total(layout);
    const uint64_t block = longest(layout);
    if (g.total == total && g.block == block) return {};
    return wrong("the geometry has " + text(g.total) + " elements in chunks of at most " +
                 text(g.block) + ", but the layout has " + text(total) + " and " + text(block));
  }
  const uint64_t ranks = op.programs.size();
  const internal::Form form = internal::form_of(op.collective);
  const bool blocks = form.in == internal::Holds::kEach || form.out == internal::Holds::kEach;
  const uint64_t most_chunks =
      form.in == internal::Holds::kEach && form.out == internal::Holds::kEach ? ranks * ranks
                                                                              : ranks;
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

Status check_geometry(const LoweredOperation& op, const std::string& what, const Limits& limits) {
  const std::vector<Geometry>& channels = op.programs[0].channels;
  if (channels.empty()) return wrong(what + "has no channels");
  // One rank alone has no barrier to keep.
  const bool nothing_to_do = op.programs.size() == 1 && op.collective == Collective::kBarrier;
  bool slots = false;
  for (const Program& program : op.programs) slots = slots || uses_slots(program);
  const bool own_rounds = op.collective == Collective::kAllToAllV;
  for (size_t r = 0; r < op.programs.size(); ++r) {
    const std::vector<Geometry>& own = op.programs[r].channels;
    if (!std::equal(channels.begin(), channels.end(), own.begin(), own.end(),
                    own_rounds ? same_slices : same)) {
      return wrong(what + "rank " + text(r) + " has another geometry than rank 0");
    }
    if (r > 0 && !own_rounds) continue;
    for (size_t c = 0; c < own.size(); ++c) {
      RONDO_TRY(check_division(op, r, own[c]));
      if (nothing_to_do) continue;
      const std::string where = what + (r > 0 ? "rank " + text(r) + ", " : "");
      RONDO_TRY(check_channel(own[c], where + "channel " + text(c) + " ", slots, limits));
    }
    RONDO_TRY(check_tiling(own));
  }
  return {};
}

/// Which chunk an operand of a move of `chunk` must name.
int chunk_of(Collective collective, const Operand& o, int chunk, int ranks) {
  return is_in(o)    ? block_in(collective, chunk, ranks)
         : is_out(o) ? block_out(collective, chunk, ranks)
                     : chunk;
}

bool is_identity(const Operand& o) { return o.place == OperandKind::kIdentity; }

/// What is wrong with an operand, or empty.
std::string operand_fault(Collective collective, const Operand& o, bool destination, int rank,
                          int ranks, int chunk) {
  const bool own = o.place == OperandKind::kIn || o.place == OperandKind::kOut ||
                   o.place == OperandKind::kIdentity ||
                   (o.place == OperandKind::kPublished && destination);
  if (!own && (o.peer < 0 || o.peer >= ranks || o.peer == rank)) {
    return "names peer " + std::to_string(o.peer) + ", which is not another of the " +
           std::to_string(ranks) + " ranks";
  }
  if (o.chunk != chunk_of(collective, o, chunk, ranks)) {
    return "is about chunk " + std::to_string(chunk) + ", but has an operand of chunk " +
           std::to_string(o.chunk);
  }
  const int owner = own ? rank : o.peer;
  const internal::Form form = internal::form_of(collective);
  if (form.in == internal::Holds::kOne && form.out == internal::Holds::kEach && is_in(o) &&
      chunk != owner) {
    return "is about chunk " + std::to_string(chunk) + ", which rank " + std::to_string(owner) +
           " does not send";
  }
  if (base_of(collective) == Collective::kAllToAll) {
    if ((is_in(o) && chunk / ranks != owner) || (is_out(o) && chunk % ranks != owner)) {
      return "is about chunk " + std::to_string(chunk) + ", which rank " + std::to_string(owner) +
             (is_in(o) ? " does not send" : " does not get");
    }
  }
  if (destination && is_in(o)) return "writes into In";
  return {};
}

/// Whether the operand begins where its block does; empty: it does.
std::string offset_fault(const LoweredOperation& op, const Location& o, int rank) {
  const int owner = in_peer(o) ? o.peer : rank;
  const uint64_t expected = in_slot(o) ? 0 : block_offset(op, owner, is_out(o), o.chunk);
  if (o.offset == expected) return "";
  return "has block " + std::to_string(o.chunk) + " at element " + text(o.offset) +
         " of a buffer in which it begins at " + text(expected);
}

/// Why ranks of two hosts cannot meet so, or empty.
std::string hosts_fault(const LoweredOperation& op, const Operand& o, bool destination, int rank) {
  const bool theirs = in_peer(o) || (o.place == OperandKind::kPublished && !destination);
  if (!op.hosts || !theirs || op.hosts->share_host(rank, o.peer)) return "";
  return "reaches into memory of rank " + std::to_string(o.peer) + ", which is on another host";
}

/// Two equal operands on one side would take two slots in one move, or fold a contribution twice.
bool repeats(std::span<const Location> operands) {
  if (operands.size() < 2) return false;
  std::vector<std::pair<OperandKind, int32_t>> keys;
  keys.reserve(operands.size());
  for (const Operand& o : operands) {
    const bool own = o.place == OperandKind::kIn || o.place == OperandKind::kOut;
    keys.emplace_back(o.place, own ? -1 : o.peer);
  }
  std::sort(keys.begin(), keys.end());
  return std::adjacent_find(keys.begin(), keys.end()) != keys.end();
}

/// What is wrong with an instruction as such, or empty.
std::string instruction_fault(const LoweredOperation& op, int rank, const Instruction& i) {
  const Program& program = op.programs[static_cast<size_t>(rank)];
  const int ranks = static_cast<int>(op.programs.size());
  if (i.action == Action::kSignal) return {};
  if (i.action == Action::kWait) {
    if (i.peer < 0 || i.peer >= ranks || i.peer == rank) {
      return "waits for rank " + std::to_string(i.peer) + ", which is not a peer";
    }
    if (!op.hosts || op.hosts->share_host(rank, i.peer)) return {};
    return "waits for the counter of rank " + std::to_string(i.peer) + ", which is on another host";
  }
  if (i.sources == 0 || i.destinations == 0 || i.chunk < 0 ||
      uint64_t{i.first} + i.sources + i.destinations > program.operands.size()) {
    return "moves " + text(i.sources) + " sources to " + text(i.destinations) +
           " destinations of chunk " + std::to_string(i.chunk) + ", which is no move";
  }
  const int most = internal::form_of(op.collective).in == internal::Holds::kEach &&
                           internal::form_of(op.collective).out == internal::Holds::kEach
                       ? ranks * ranks
                       : ranks;
  if (i.chunk >= most) {
    return "is about chunk " + std::to_string(i.chunk) + " of " + std::to_string(most);
  }
  const std::span<const Location> all(program.operands.data() + i.first,
                                      size_t{i.sources} + i.destinations);
  for (size_t o = 0; o < all.size(); ++o) {
    std::string fault = operand_fault(op.collective, all[o], o >= i.sources, rank, ranks, i.chunk);
    if (fault.empty()) fault = offset_fault(op, all[o], rank);
    if (fault.empty()) fault = hosts_fault(op, all[o], o >= i.sources, rank);
    if (!fault.empty()) return fault;
  }
  if (i.length != chunk_length(op, i.chunk)) {
    return "moves " + text(i.length) + " elements of chunk " + std::to_string(i.chunk) +
           ", which has " + text(chunk_length(op, i.chunk));
  }
  if (repeats(all.first(i.sources)) || repeats(all.subspan(i.sources))) {
    return "names the same place twice";
  }
  const bool fills = std::any_of(all.begin(), all.end(), is_identity);
  if (fills && (!is_identity(all[0]) || all.size() != 2 || all[1].place != OperandKind::kOut)) {
    return "has the operator's identity elsewhere than as the only source of a move to Out";
  }
  const bool finishes = (internal::form_of(op.collective).reduces && !is_scan(op.collective)) ||
                        op.collective == Collective::kBarrier;
  return i.finishes && !finishes ? "finishes a reduction where none is" : "";
}

Status check_signals(const LoweredOperation& op, const std::string& what) {
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

Status check_form(std::span<const LoweredOperation> operations, const Limits& limits) {
  for (size_t k = 0; k < operations.size(); ++k) {
    const LoweredOperation& op = operations[k];
    const std::string what =
        "operation " + text(k) + " (" + std::string(name(op.collective)) + "): ";
    if (op.programs.empty() || op.programs.size() != operations[0].programs.size()) {
      return wrong(what + "programs for " + text(op.programs.size()) +
                   " ranks, but operation 0 has " + text(operations[0].programs.size()));
    }
    const LoweredOperation& first = operations[0];
    if (op.hosts && static_cast<size_t>(op.hosts->ranks()) != op.programs.size()) {
      return wrong(what + "hosts of " + text(static_cast<uint64_t>(op.hosts->ranks())) +
                   " ranks for programs of " + text(op.programs.size()));
    }
    if ((op.hosts && first.hosts && !(*op.hosts == *first.hosts)) || !op.hosts != !first.hosts) {
      return wrong(what + "ranks are on other hosts than in operation 0");
    }
    if (const Status status = check_layouts(op); !status.ok())
      return wrong(what + status.message());
    RONDO_TRY(check_geometry(op, what, limits));
    for (size_t r = 0; r < op.programs.size(); ++r) {
      for (size_t i = 0; i < op.programs[r].instructions.size(); ++i) {
        const std::string fault =
            instruction_fault(op, static_cast<int>(r), op.programs[r].instructions[i]);
        if (!fault.empty()) {
          return wrong(what + "rank " + text(r) + ", step " + text(i) + " " + fault);
        }
      }
    }
    RONDO_TRY(check_signals(op, what));
  }
  return {};
}

}  // namespace

uint64_t chunk_length(const LoweredOperation& op, int chunk) {
  const auto c = static_cast<size_t>(chunk), ranks = op.programs.size();
  if (op.collective == Collective::kAllToAllV) {
    return op.layouts[c / ranks].in_counts[c % ranks];
  }
  if (is_varying(op.collective)) return blocks_of(op.layouts[0], op.collective)[c];
  const Geometry& g = op.programs[0].channels[0];
  return c * g.block >= g.total ? 0 : std::min(g.block, g.total - c * g.block);
}

Result<VerifyReport> verify(std::span<const LoweredOperation> operations, const Limits& limits) {
  VerifyReport report;
  if (operations.empty()) return report;
  RONDO_TRY(check_form(operations, limits));
  report.elements_sent.resize(operations[0].programs.size());
  report.elements_fetched.resize(operations[0].programs.size());
  if (operations[0].hosts) {
    report.crossings.resize(static_cast<size_t>(operations[0].hosts->hosts()));
  }
  size_t channels = 0;
  for (const LoweredOperation& op : operations) {
    channels = std::max(channels, op.programs[0].channels.size());
  }
  for (size_t c = 0; c < channels; ++c) {
    SymbolicChannel channel(operations, c, limits.depth, report);
    RONDO_TRY(channel.run());
  }
  return report;
}

}  // namespace rondo::schedule
