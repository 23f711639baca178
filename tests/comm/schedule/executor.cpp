// See executor.hpp; data and what is expected: expectation.hpp. A buffer holds garbage before its
// owner has called and after it has returned. Finishing multiplies by 3.
#include "tests/comm/schedule/executor.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <random>

#include "tests/comm/schedule/expectation.hpp"

namespace rondo::schedule::test {
namespace {

using Data = std::vector<uint64_t>;

struct Rank {
  size_t id = 0;
  bool started = false, ended = false;
  Data memory;  // In and Out, overlapping where in place
  size_t in_base = 0, out_base = 0, in_size = 0, out_size = 0;
  Data result;  // Out when the call returned
  uint64_t round = 0;
  size_t instruction = 0;
  uint32_t slice = 0;
  uint32_t signals = 0;
};

class Execution {
 public:
  Execution(const LoweredOperation& op, const Limits& limits, uint64_t seed)
      : op_(op),
        g_(op.programs[0].channels[0]),
        depth_(limits.depth),
        random_(seed),
        ranks_(op.programs.size()),
        links_(ranks_.size() * ranks_.size()),
        published_(links_.size()) {
    for (size_t r = 0; r < ranks_.size(); ++r) lay_out(ranks_[r], r);
    order_.resize(ranks_.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), random_);
    strict_ = seed % 2 == 0;  // always the first in `order_` that can, or anyone
  }

  std::string run() {
    while (fault_.empty()) {
      if (!strict_) std::shuffle(order_.begin(), order_.end(), random_);
      const bool moved = std::any_of(order_.begin(), order_.end(),
                                     [this](size_t r) { return advance(ranks_[r]); });
      if (!moved) break;
    }
    if (!fault_.empty()) return fault_;
    for (const Rank& r : ranks_) {
      if (!r.ended) return "deadlock";
    }
    for (const auto& fifo : links_) {
      if (!fifo.empty()) return "a slot is left over";
    }
    for (const auto& fifo : published_) {
      if (!fifo.empty()) return "a published slot is left over";
    }
    return check();
  }

 private:
  void lay_out(Rank& r, size_t id) {
    r.id = id;
    r.in_size = expectation_.in_size(id);
    r.out_size = expectation_.out_size(id);
    r.in_base = expectation_.in_base(id);
    r.out_base = expectation_.out_base(id);
    r.memory.resize(op_.in_place ? std::max(r.in_base + r.in_size, r.out_base + r.out_size)
                                 : r.in_size + r.out_size);
    poison(r);
  }

  void poison(Rank& r) {
    for (uint64_t& x : r.memory) x = random_();
  }

  void start(Rank& r) {
    r.started = true;
    if (!expectation_.reads(r.id)) return;
    for (size_t i = 0; i < r.in_size; ++i) r.memory[r.in_base + i] = contribution(r.id, i);
  }

  void end(Rank& r) {
    r.ended = true;
    const auto out = r.memory.begin() + static_cast<std::ptrdiff_t>(r.out_base);
    r.result.assign(out, out + static_cast<std::ptrdiff_t>(r.out_size));
    poison(r);
    if (op_.collective != Collective::kBarrier) return;
    for (const Rank& other : ranks_) {
      if (!other.started) fault_ = "left the barrier early";
    }
  }

  bool advance(Rank& r) {
    const Program& program = op_.programs[r.id];
    if (r.ended) return false;
    if (!r.started) return start(r), true;
    if (r.round >= program.channels[0].rounds || program.instructions.empty()) return end(r), true;
    const Instruction& i = program.instructions[r.instruction];
    if (!execute(r, program, i)) return false;
    if (i.action == Action::kMove && ++r.slice < g_.slices) return true;
    r.slice = 0;
    if (++r.instruction < program.instructions.size()) return true;
    r.instruction = 0;
    ++r.round;
    return true;
  }

  bool execute(Rank& r, const Program& program, const Instruction& i) {
    if (i.action == Action::kSignal) return ++r.signals, true;
    if (i.action == Action::kWait) {
      if (!is_peer(r, i.peer)) return fault("no peer");
      const Rank& peer = ranks_[static_cast<size_t>(i.peer)];
      return i.flag == Flag::kPosted ? peer.started : peer.signals >= r.signals;
    }
    if (i.chunk < 0) return fault("no chunk");
    const uint64_t length = g_.slice_length(i.length, r.round, r.slice);
    if (length == 0) return true;
    for (uint32_t n = 0; n < uint32_t{i.sources} + i.destinations; ++n) {
      const Operand& o = program.operands[i.first + n];
      if (in_fifo(o) && !ready(r, o, n >= i.sources)) return false;
    }
    if (!fault_.empty()) return false;
    Data sum;
    for (uint32_t n = 0; n < i.sources; ++n) {
      const std::optional<Data> data = read(r, program.operands[i.first + n], length);
      if (!data) return false;
      if (n == 0) sum = *data;
      for (uint64_t e = 0; n > 0 && e < length; ++e) sum[e] += (*data)[e];
    }
    if (i.finishes) {
      for (uint64_t& x : sum) x *= 3;
    }
    for (uint32_t n = 0; n < i.destinations; ++n) {
      write(r, program.operands[i.first + i.sources + n], sum);
    }
    return true;
  }

  bool fault(const char* what) {
    fault_ = what;
    return false;
  }
  bool is_peer(const Rank& r, int peer) const {
    return peer >= 0 && static_cast<size_t>(peer) < ranks_.size() &&
           static_cast<size_t>(peer) != r.id;
  }
  static bool in_fifo(const Operand& o) {
    return o.place == OperandKind::kSlot || o.place == OperandKind::kPublished;
  }

  /// A published slot is one entry in the FIFO of each reader.
  std::deque<Data>& fifo(const Operand& o, size_t from, size_t to) {
    return (o.place == OperandKind::kSlot ? links_ : published_)[from * ranks_.size() + to];
  }

  bool ready(const Rank& r, const Operand& o, bool destination) {
    const bool publishes = destination && o.place == OperandKind::kPublished;
    if (!publishes && !is_peer(r, o.peer)) return fault("no peer");
    const auto peer = static_cast<size_t>(o.peer);
    if (!destination) return !fifo(o, peer, r.id).empty();
    for (size_t to = 0; to < ranks_.size(); ++to) {
      if (to == r.id || (!publishes && to != peer)) continue;
      if (fifo(o, r.id, to).size() >= depth_) return false;
    }
    return true;
  }

  /// Where `length` elements of a buffer operand begin in its owner's memory; nothing when that is
  /// out of bounds.
  std::optional<size_t> place(const Rank& r, const Location& o, uint64_t length, size_t* owner) {
    const bool peers = o.place == OperandKind::kPeerIn || o.place == OperandKind::kPeerOut;
    if (peers && !is_peer(r, o.peer)) return std::nullopt;
    *owner = peers ? static_cast<size_t>(o.peer) : r.id;
    const bool out = o.place == OperandKind::kOut || o.place == OperandKind::kPeerOut;
    const Rank& rank = ranks_[*owner];
    const uint64_t offset = o.offset + g_.slice_begin(r.round, r.slice);
    if (o.chunk < 0 || offset + length > (out ? rank.out_size : rank.in_size)) return std::nullopt;
    return offset + (out ? rank.out_base : rank.in_base);
  }

  std::optional<Data> read(Rank& r, const Location& o, uint64_t length) {
    if (o.place == OperandKind::kIdentity) return Data(length, 0);
    if (in_fifo(o)) {
      auto& queue = fifo(o, static_cast<size_t>(o.peer), r.id);
      if (queue.empty()) return fault("two slots taken at once"), std::nullopt;
      Data data = std::move(queue.front());
      queue.pop_front();
      if (data.size() != length) return fault("another length"), std::nullopt;
      return data;
    }
    size_t owner = 0;
    const std::optional<size_t> at = place(r, o, length, &owner);
    if (!at) return fault("out of bounds"), std::nullopt;
    const auto begin = ranks_[owner].memory.begin() + static_cast<std::ptrdiff_t>(*at);
    return Data(begin, begin + static_cast<std::ptrdiff_t>(length));
  }

  void write(Rank& r, const Location& o, const Data& data) {
    if (in_fifo(o)) {
      for (size_t to = 0; to < ranks_.size(); ++to) {
        const bool reader =
            o.place == OperandKind::kPublished ? to != r.id : static_cast<int>(to) == o.peer;
        if (reader) fifo(o, r.id, to).push_back(data);
      }
      return;
    }
    size_t owner = 0;
    const std::optional<size_t> at = place(r, o, data.size(), &owner);
    if (!at) {
      fault("out of bounds");
      return;
    }
    std::copy(data.begin(), data.end(),
              ranks_[owner].memory.begin() + static_cast<std::ptrdiff_t>(*at));
  }

  std::string check() const {
    if (op_.collective == Collective::kBarrier) return {};
    const bool all = std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& r) {
      return expectation_.right(r.id, r.result.data());
    });
    return all ? "" : "wrong result";
  }

  const LoweredOperation& op_;
  const Expectation expectation_{op_, [](uint64_t sum) { return 3 * sum; }};
  const Geometry& g_;
  const size_t depth_;
  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  std::vector<std::deque<Data>> links_, published_;  // [from * ranks + to]
  std::vector<size_t> order_;
  bool strict_ = false;
  std::string fault_;
};

}  // namespace

std::string execute(const LoweredOperation& op, const Limits& limits, uint64_t seed) {
  return Execution(op, limits, seed).run();
}

}  // namespace rondo::schedule::test
