// See symbolic.hpp.
#include "comm/schedule/symbolic.hpp"

#include <algorithm>
#include <set>

namespace rondo::schedule {
namespace {

std::string of_rank(int rank) { return "rank " + std::to_string(rank); }
size_t at(int rank) { return static_cast<size_t>(rank); }

}  // namespace

SymbolicChannel::SymbolicChannel(std::span<const LoweredOperation> operations, size_t channel,
                                 uint32_t depth, VerifyReport& report)
    : operations_(operations),
      channel_(channel),
      depth_(depth),
      report_(report),
      values_(ranks()),
      shared_(operations.size()),
      rounds_(operations.size()),
      cursors_(at(ranks())),
      links_(at(ranks()) * at(ranks())),
      published_(at(ranks())) {
  bool clocks = false;
  for (size_t k = 0; k < operations.size(); ++k) {
    bool signals = false;
    for (const Program& program : operations[k].programs) {
      for (const Instruction& i : program.instructions) signals |= i.action != Action::kMove;
      const auto& operands = program.operands;
      if (std::any_of(operands.begin(), operands.end(), in_peer)) shared_[k] = true;
    }
    clocks = clocks || signals || shared_[k];
    if (!has_channel(k)) continue;
    rounds_[k] = rounds_of(k, signals || shared_[k]);
    report_.rounds += geometry(k).rounds;
    report_.rounds_carried_out += rounds_[k].size();
  }
  if (clocks) clocks_ = std::make_unique<Clocks>(ranks(), operations.size());
  prepare_memory();
}

uint64_t SymbolicChannel::chunks(size_t op) const {
  const Geometry& g = geometry(op);
  const auto n = static_cast<uint64_t>(ranks());
  if (is_varying(operations_[op].collective)) {
    return operations_[op].collective == Collective::kAllToAllV ? n * n : n;
  }
  return g.total == 0 ? 0 : (g.total - 1) / g.block + 1;
}

std::vector<SymbolicChannel::Round> SymbolicChannel::rounds_of(size_t op, bool every) const {
  std::set<uint64_t> lengths;  // of chunks
  for (uint64_t c = 0; c < chunks(op); ++c) {
    lengths.insert(chunk_length(operations_[op], static_cast<int>(c)));
  }
  uint64_t all = 0;  // the most of any rank: the others have nothing left to move in the last ones
  for (int r = 0; r < ranks(); ++r) all = std::max(all, geometry(op, r).rounds);
  const auto differs_from_last = [&](uint64_t round) {
    for (int r = 0; r < (is_varying(operations_[op].collective) ? ranks() : 1); ++r) {
      const Geometry& g = geometry(op, r);
      for (uint32_t s = 0; s < g.slices; ++s) {
        for (const uint64_t length : lengths) {
          if (g.slice_length(length, round, s) != g.slice_length(length, round - 1, s)) return true;
        }
      }
    }
    return false;
  };
  // The first two rounds of a kind are carried out, and the last of all; those between are like the
  // one before. A new kind begins only where a chunk ends.
  std::set<uint64_t> carried_out;
  const auto begin_kind = [&](uint64_t round) {
    for (const uint64_t r : {round, round + 1}) {
      if (r < all) carried_out.insert(r);
    }
  };
  begin_kind(0);
  if (all > 0) carried_out.insert(all - 1);
  for (int r = 0; r < (is_varying(operations_[op].collective) ? ranks() : 1); ++r) {
    const Geometry& g = geometry(op, r);
    for (const uint64_t length : lengths) {
      const uint64_t ends =
          g.window == 0 ? 0 : (std::clamp(length, g.begin, g.end) - g.begin) / g.window;
      for (const uint64_t round : {ends, ends + 1}) {
        if (round > 0 && round < all && differs_from_last(round)) begin_kind(round);
      }
    }
  }
  for (uint64_t round = 0; every && round < all; ++round) carried_out.insert(round);
  std::vector<Round> rounds;
  for (const uint64_t round : carried_out) {
    if (!rounds.empty()) rounds.back().times = round - rounds.back().number;
    rounds.push_back({.number = round, .times = 1});
  }
  return rounds;
}

uint64_t SymbolicChannel::blocks(size_t op) const {
  return std::max(std::min(chunks(op), static_cast<uint64_t>(ranks())), uint64_t{1});
}

std::vector<int> SymbolicChannel::chunks_of(size_t op, int rank, bool out) const {
  const LoweredOperation& operation = operations_[op];
  const internal::Form form = internal::form_of(operation.collective);
  if ((out ? form.only_root_writes : form.only_root_reads) && rank != operation.root) return {};
  const bool single = (out ? form.out : form.in) == internal::Holds::kOne;
  const bool exchanged = form.in == internal::Holds::kEach && form.out == internal::Holds::kEach;
  std::vector<int> some;
  for (int c = 0; c < static_cast<int>(chunks(op)); ++c) {
    const bool mine = exchanged ? (out ? c % ranks() : c / ranks()) == rank : !single || c == rank;
    if (mine) some.push_back(c);
  }
  return some;
}

size_t SymbolicChannel::cell_of(size_t op, int rank, bool out, int chunk, uint64_t index) const {
  const LoweredOperation& operation = operations_[op];
  const internal::Form form = internal::form_of(operation.collective);
  const bool single = (out ? form.out : form.in) == internal::Holds::kOne;
  const int block = out ? block_out(operation.collective, chunk, ranks())
                        : block_in(operation.collective, chunk, ranks());
  auto c = static_cast<uint64_t>(block);
  if (single) c = operation.in_place ? static_cast<uint64_t>(rank) : 0;
  if (out && !operation.in_place) c += blocks(op);
  return static_cast<size_t>(c * indices(op) + index);
}

void SymbolicChannel::prepare_memory() {
  memory_.resize(operations_.size());
  for (size_t k = 0; k < operations_.size(); ++k) {
    memory_[k].resize(at(ranks()));
    if (!has_channel(k)) continue;
    for (int r = 0; r < ranks(); ++r) {
      std::vector<Cell>& cells = memory_[k][at(r)];
      cells.resize(2 * blocks(k) * indices(k));
      for (const int c : chunks_of(k, r, false)) {
        const ValueId leaf = values_.leaf(r, c);
        for (uint64_t i = 0; i < indices(k); ++i) cells[cell_of(k, r, false, c, i)].value = leaf;
      }
    }
  }
}

// ---- FIFOs

SymbolicChannel::SymbolicFifo& SymbolicChannel::link(int from, int to) {
  SymbolicFifo& fifo = links_[at(from) * at(ranks()) + at(to)];
  if (fifo.ring.empty()) fifo = {.ring = std::vector<SlotContent>(depth_), .taken = {0}};
  return fifo;
}

SymbolicChannel::SymbolicFifo& SymbolicChannel::published(int from) {
  SymbolicFifo& fifo = published_[at(from)];
  if (fifo.ring.empty()) {
    fifo = {.ring = std::vector<SlotContent>(depth_),
            .taken = std::vector<uint64_t>(at(ranks()), 0)};
  }
  return fifo;
}

SymbolicChannel::SymbolicFifo& SymbolicChannel::fifo_of(const Operand& o, int rank,
                                                        bool destination) {
  if (o.place == OperandKind::kPublished) return published(destination ? rank : o.peer);
  return destination ? link(rank, o.peer) : link(o.peer, rank);
}

size_t SymbolicChannel::reader_of(const Operand& o, int rank) {
  return o.place == OperandKind::kPublished ? at(rank) : 0;
}

/// The slowest reader counts; a rank does not read what it has published itself.
bool SymbolicChannel::full(const SymbolicFifo& fifo, int writer) const {
  for (size_t r = 0; r < fifo.taken.size(); ++r) {
    if (fifo.taken.size() > 1 && r == at(writer)) continue;
    if (fifo.written - fifo.taken[r] >= depth_) return true;
  }
  return false;
}

// ---- Execution

Status SymbolicChannel::run() {
  for (int r = 0; r < ranks(); ++r) RONDO_TRY(enter(r));
  for (bool progress = true; progress;) {
    progress = false;
    for (int r = 0; r < ranks(); ++r) {
      bool moved = RONDO_TRY(advance(r));
      progress = progress || moved;
    }
  }
  for (const SymbolicCursor& cursor : cursors_) {
    if (cursor.op < operations_.size()) return deadlock();
  }
  RONDO_TRY(check_left_over());
  return check_results();
}

/// Starts the operation at the cursor, and skips those that have nothing for this channel.
Status SymbolicChannel::enter(int rank) {
  SymbolicCursor& at_rank = cursors_[at(rank)];
  for (; at_rank.op < operations_.size(); ++at_rank.op) {
    if (clocks_) clocks_->start(rank, at_rank.op);
    if (has_channel(at_rank.op) && geometry(at_rank.op, rank).rounds > 0 &&
        !operations_[at_rank.op].programs[at(rank)].instructions.empty()) {
      break;
    }
    if (clocks_) {
      const std::string why = clocks_->end(rank, at_rank.op);
      if (!why.empty()) return wrong(of_rank(rank) + " " + why);
    }
  }
  return {};
}

Result<bool> SymbolicChannel::advance(int rank) {
  SymbolicCursor& cursor = cursors_[at(rank)];
  bool progress = false;
  while (cursor.op < operations_.size() && !blocked(rank, nullptr)) {
    progress = true;
    const Program& program = operations_[cursor.op].programs[at(rank)];
    RONDO_TRY(step(rank, program, program.instructions[cursor.instruction]));
    const size_t op = cursor.op;
    next(rank);
    if (cursor.op == op) continue;
    RONDO_TRY(check_barrier(op, rank));
    const std::string why = clocks_ ? clocks_->end(rank, op) : std::string();
    if (!why.empty()) {
      return wrong("operation " + std::to_string(op) + ", " + of_rank(rank) + " " + why);
    }
    RONDO_TRY(enter(rank));
  }
  return progress;
}

void SymbolicChannel::next(int rank) {
  SymbolicCursor& cursor = cursors_[at(rank)];
  const Program& program = operations_[cursor.op].programs[at(rank)];
  const Geometry& g = geometry(cursor.op, rank);
  const bool repeated = program.instructions[cursor.instruction].action == Action::kMove;
  if (repeated && ++cursor.slice < g.slices) return;
  cursor.slice = 0;
  if (++cursor.instruction < program.instructions.size()) return;
  cursor.instruction = 0;
  if (++cursor.round < rounds_[cursor.op].size()) return;
  cursor = {.op = cursor.op + 1};
}

Status SymbolicChannel::step(int rank, const Program& program, const Instruction& i) {
  const size_t op = cursors_[at(rank)].op;
  switch (i.action) {
    case Action::kMove:
      return move(rank, program, i);
    case Action::kSignal:
      clocks_->signal(rank, op);
      return {};
    case Action::kWait:
      if (i.flag == Flag::kPosted) {
        clocks_->saw_post(rank, i.peer, op);
      } else if (clocks_->signals(rank, op) > 0) {
        clocks_->saw_signal(rank, i.peer, op, clocks_->signals(rank, op));
      }
      return {};
  }
  return {};
}

bool SymbolicChannel::wait_blocked(int rank, const Instruction& i, Blocked* why) const {
  const size_t op = cursors_[at(rank)].op;
  const bool ready = i.flag == Flag::kPosted
                         ? clocks_->started(i.peer, op)
                         : clocks_->signals(i.peer, op) >= clocks_->signals(rank, op);
  if (!ready && why != nullptr) {
    *why = {i.flag == Flag::kPosted ? "the call of " : "a signal from ", i.peer};
  }
  return !ready;
}

bool SymbolicChannel::blocked(int rank, Blocked* why) {
  const SymbolicCursor& cursor = cursors_[at(rank)];
  const Program& program = operations_[cursor.op].programs[at(rank)];
  const Instruction& i = program.instructions[cursor.instruction];
  if (i.action == Action::kSignal) return false;
  if (i.action == Action::kWait) return wait_blocked(rank, i, why);
  if (part_length(cursor.op, rank, i.length, index_of(cursor)) == 0) return false;
  for (uint32_t n = 0; n < uint32_t{i.sources} + i.destinations; ++n) {
    const Operand& o = program.operands[i.first + n];
    if (!in_slot(o)) continue;
    const bool destination = n >= i.sources;
    const SymbolicFifo& fifo = fifo_of(o, rank, destination);
    if (destination ? !full(fifo, rank) : fifo.taken[reader_of(o, rank)] < fifo.written) continue;
    if (why == nullptr) return true;
    int peer = o.peer;
    for (int r = 0; destination && o.place == OperandKind::kPublished && r < ranks(); ++r) {
      if (r != rank && fifo.written - fifo.taken[at(r)] >= depth_) peer = r;
    }
    *why = {destination ? "a free slot, all " + std::to_string(depth_) + " being taken, towards "
                        : "data from ",
            peer};
    return true;
  }
  return false;
}

Status SymbolicChannel::move(int rank, const Program& program, const Instruction& i) {
  const SymbolicCursor& cursor = cursors_[at(rank)];
  const uint64_t index = index_of(cursor), times = rounds_[cursor.op][cursor.round].times;
  const uint64_t length = part_length(cursor.op, rank, i.length, index) * times;
  if (length == 0) return {};
  report_.moves += times;
  std::vector<ValueId> sources;
  for (uint32_t n = 0; n < i.sources; ++n) {
    const Operand& o = program.operands[i.first + n];
    sources.push_back(RONDO_TRY(take(rank, i, o, index)));
    if (o.place == OperandKind::kPublished || in_peer(o))
      report_.elements_fetched[at(rank)] += length;
  }
  ValueId value = RONDO_TRY(fold(rank, i, sources));
  const Operand& first = program.operands[i.first];
  for (uint32_t n = 0; n < i.destinations; ++n) {
    const Operand& o = program.operands[i.first + i.sources + n];
    const bool own = first.place == OperandKind::kIn && o.place == OperandKind::kOut;
    if (i.sources == 1 && own && operations_[cursor.op].in_place &&
        cell_of(cursor.op, rank, false, i.chunk, index) ==
            cell_of(cursor.op, rank, true, i.chunk, index)) {
      memory_[cursor.op][at(rank)][cell_of(cursor.op, rank, true, i.chunk, index)].value = value;
      continue;  // a copy onto itself is no access
    }
    RONDO_TRY(put(rank, i, o, index, value));
    if (o.place != OperandKind::kOut) report_.elements_sent[at(rank)] += length;
    if (o.place == OperandKind::kSlot) count_crossing(rank, o.peer, length);
  }
  return {};
}

void SymbolicChannel::count_crossing(int from, int to, uint64_t length) {
  const SharedHosts& hosts = operations_[0].hosts;
  if (!hosts || hosts->share_host(from, to)) return;
  report_.crossings[at(hosts->host_of(from))].elements_out += length;
  report_.crossings[at(hosts->host_of(to))].elements_in += length;
}

Result<ValueId> SymbolicChannel::take(int rank, const Instruction& i, const Operand& o,
                                      uint64_t index) {
  const size_t op = cursors_[at(rank)].op;
  if (in_slot(o)) {
    SymbolicFifo& fifo = fifo_of(o, rank, false);
    const SlotContent& entry = fifo.ring[fifo.taken[reader_of(o, rank)]++ % depth_];
    if (entry.op != op || entry.chunk != i.chunk || entry.index != index) {
      return wrong(where(rank) + "takes a slot from rank " + std::to_string(o.peer) +
                   " that holds part " + std::to_string(entry.index) + " of chunk " +
                   std::to_string(entry.chunk) + " of operation " + std::to_string(entry.op) +
                   " for part " + std::to_string(index) + " of chunk " + std::to_string(i.chunk));
    }
    return entry.value;
  }
  if (o.place == OperandKind::kIdentity) return values_.identity(i.chunk);
  const int owner = in_peer(o) ? o.peer : rank;
  const size_t place = cell_of(op, owner, is_out(o), i.chunk, index);
  if (shared_[op]) {
    const std::string why = clocks_->access(rank, owner, op, place, false);
    if (!why.empty()) return wrong(where(rank) + why);
  }
  const Cell& cell = memory_[op][at(owner)][place];
  if (!is_out(o) && cell.written) {
    return wrong(where(rank) + "reads chunk " + std::to_string(i.chunk) + " of In of rank " +
                 std::to_string(owner) + " after Out, in the same place, has been written");
  }
  if (cell.value == kNothing) {
    return wrong(where(rank) + "reads chunk " + std::to_string(i.chunk) + " of " +
                 (is_out(o) ? "Out" : "In") + " of rank " + std::to_string(owner) +
                 ", which nobody has written");
  }
  return cell.value;
}

Result<ValueId> SymbolicChannel::fold(int rank, const Instruction& i,
                                      const std::vector<ValueId>& sources) {
  ValueId value = sources[0];
  for (size_t n = 0; n < sources.size(); ++n) {
    if (values_.chunk(sources[n]) != values_.chunk(sources[0])) {
      return wrong(where(rank) + "folds chunk " + std::to_string(values_.chunk(sources[n])) +
                   " into chunk " + std::to_string(values_.chunk(sources[0])));
    }
    if (values_.finished(sources[n]) && (sources.size() > 1 || i.finishes)) {
      return wrong(where(rank) + "goes on reducing a finished result");
    }
    if (n == 0) continue;
    int overlap = -1;
    value = values_.fold(value, sources[n], &overlap);
    if (value == kNothing) {
      return wrong(where(rank) + "adds the contribution of rank " + std::to_string(overlap) +
                   " a second time");
    }
  }
  return i.finishes ? values_.finish(value) : value;
}

Status SymbolicChannel::put(int rank, const Instruction& i, const Operand& o, uint64_t index,
                            ValueId value) {
  const size_t op = cursors_[at(rank)].op;
  if (in_slot(o)) {
    SymbolicFifo& fifo = fifo_of(o, rank, true);
    fifo.ring[fifo.written++ % depth_] = {op, i.chunk, index, value};
    return {};
  }
  const int owner = in_peer(o) ? o.peer : rank;
  const size_t place = cell_of(op, owner, true, i.chunk, index);
  if (shared_[op]) {
    const std::string why = clocks_->access(rank, owner, op, place, true);
    if (!why.empty()) return wrong(where(rank) + why);
  }
  memory_[op][at(owner)][place] = {.value = value, .written = true};
  return {};
}

// ---- What must hold at the end

Status SymbolicChannel::check_results() {
  for (size_t k = 0; k < operations_.size(); ++k) {
    if (!has_channel(k) || operations_[k].collective == Collective::kBarrier) continue;
    for (int r = 0; r < ranks(); ++r) {
      for (const int c : chunks_of(k, r, true)) {
        const uint64_t length = chunk_length(operations_[k], c);
        for (uint64_t i = 0; i < indices(k); ++i) {
          if (part_length(k, r, length, i) == 0) continue;
          RONDO_TRY(check_result(k, r, c, i));
        }
      }
    }
  }
  return {};
}

Status SymbolicChannel::check_result(size_t op, int rank, int chunk, uint64_t index) {
  const LoweredOperation& operation = operations_[op];
  const auto refuse = [&](const std::string& what) {
    return wrong("operation " + std::to_string(op) + ", " + of_rank(rank) + ", chunk " +
                 std::to_string(chunk) + ", part " + std::to_string(index) + ": " + what);
  };
  const ValueId value = memory_[op][at(rank)][cell_of(op, rank, true, chunk, index)].value;
  if (value == kNothing) return refuse("Out has not been written");
  if (values_.chunk(value) != chunk) {
    return refuse("Out holds chunk " + std::to_string(values_.chunk(value)));
  }
  const internal::Form form = internal::form_of(operation.collective);
  if (!form.reduces) {
    const bool exchanged = form.in == internal::Holds::kEach && form.out == internal::Holds::kEach;
    const int source = form.only_root_reads ? operation.root : exchanged ? chunk / ranks() : chunk;
    if (values_.only(value, source)) return {};
    return refuse("Out does not hold the data of rank " + std::to_string(source));
  }
  if (is_scan(operation.collective)) {
    const std::string fault = scan_fault(operation.collective, rank, value);
    return fault.empty() ? Status() : refuse(fault);
  }
  const int missing = values_.missing(value);
  if (missing >= 0) {
    return refuse("the contribution of rank " + std::to_string(missing) + " is missing");
  }
  if (!values_.finished(value)) return refuse("no step finishes the reduction");
  report_.rank_order = report_.rank_order && values_.order(value) == values_.rank_order(ranks());
  const bool everywhere = operation.collective == Collective::kAllReduce;
  if (everywhere && rank > 0 &&
      values_.order(value) !=
          values_.order(memory_[op][0][cell_of(op, 0, true, chunk, index)].value)) {
    return refuse("contributions are folded in another order than on rank 0");
  }
  return {};
}

std::string SymbolicChannel::scan_fault(Collective collective, int rank, ValueId value) const {
  const int count = internal::contributors(collective, rank, ranks());
  const int missing = values_.missing(value), last = values_.last(value);
  if (missing >= 0 && missing < count) {
    return "the contribution of rank " + std::to_string(missing) + " is missing";
  }
  if (last >= count) {
    return "Out holds the contribution of rank " + std::to_string(last) + ", which comes later";
  }
  if (values_.order(value) == values_.rank_order(count)) return "";
  return "contributions are not folded in rank order";
}

/// A rank leaves a barrier: it must know that everybody has come, by clock or by contribution.
Status SymbolicChannel::check_barrier(size_t op, int rank) {
  if (operations_[op].collective != Collective::kBarrier || channel_ > 0) return {};
  const std::vector<Cell>& cells = memory_[op][at(rank)];
  const size_t out = cell_of(op, rank, true, 0, 0);
  for (int p = 0; p < ranks(); ++p) {
    if (p == rank || (clocks_ && clocks_->knows_start(rank, p, op))) continue;
    if (cells[out].value != kNothing && values_.holds(cells[out].value, p)) continue;
    return wrong("operation " + std::to_string(op) + " (barrier), " + of_rank(rank) +
                 " may leave before rank " + std::to_string(p) + " has come");
  }
  return {};
}

Status SymbolicChannel::check_left_over() {
  for (int from = 0; from < ranks(); ++from) {
    for (int to = 0; to < ranks(); ++to) {
      const SymbolicFifo& direct = links_[at(from) * at(ranks()) + at(to)];
      const SymbolicFifo& wide = published_[at(from)];
      uint64_t left = direct.taken.empty() ? 0 : direct.written - direct.taken[0];
      if (!wide.taken.empty() && from != to) left += wide.written - wide.taken[at(to)];
      if (left == 0) continue;
      return wrong("at the end rank " + std::to_string(to) + " has not consumed " +
                   std::to_string(left) + " slots from rank " + std::to_string(from));
    }
  }
  return {};
}

std::string SymbolicChannel::where(int rank) const {
  const SymbolicCursor& cursor = cursors_[at(rank)];
  const Program& program = operations_[cursor.op].programs[at(rank)];
  return "operation " + std::to_string(cursor.op) + " (" +
         std::string(name(operations_[cursor.op].collective)) + "), rank " + std::to_string(rank) +
         ", channel " + std::to_string(channel_) + ", round " +
         std::to_string(rounds_[cursor.op][cursor.round].number) + ", step " +
         std::to_string(cursor.instruction) + " (" + name_of(program, cursor.instruction) +
         "), slice " + std::to_string(cursor.slice) + " ";
}

/// Follows who waits for whom from the first rank that is stuck, until a rank repeats or one that
/// has ended is found.
Status SymbolicChannel::deadlock() {
  int rank = 0;
  while (cursors_[at(rank)].op == operations_.size()) ++rank;
  std::vector<bool> visited(at(ranks()), false);
  std::string message;
  constexpr int kShown = 8;
  for (int shown = 0;; ++shown) {
    if (cursors_[at(rank)].op == operations_.size()) {
      return wrong("nobody can go on: " + message + of_rank(rank) + " has ended");
    }
    if (visited[at(rank)]) {
      return wrong("circular wait: " + message + "and so back to " + of_rank(rank));
    }
    visited[at(rank)] = true;
    Blocked why;
    blocked(rank, &why);
    if (shown < kShown) {
      message += where(rank) + "waits for " + why.need + of_rank(why.peer) + "; ";
    } else if (shown == kShown) {
      message += "and on; ";
    }
    rank = why.peer;
  }
}

}  // namespace rondo::schedule
