// The symbolic execution of one channel of a sequence of operations. Internal to the verifier,
// which has checked the form of the programs before. Executes greedily: any order that respects the
// FIFOs gives the same values.
//
// Of rounds that are alike (every slice as long as in the round before) the first two and the last
// of all are carried out, where nothing but slots joins the ranks. The others cannot go wrong if
// those do not. A slot must be taken by the move of the same operation, round, slice and chunk, and
// none may be left over, so every round takes exactly what it puts: no data pass from round to
// round. What an event waits for (its rank's event before it, the slot that it takes, the slot that
// must come free for it) lies in its own round or an earlier one, so a circular wait lies within a
// single round; and what waits for what within a round depends on that round's lengths alone.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/schedule/symbolic_clocks.hpp"
#include "comm/schedule/symbolic_values.hpp"
#include "comm/schedule/verifier.hpp"

namespace rondo::schedule {

inline Status wrong(const std::string& what) { return {Code::kDataError, what}; }

class SymbolicChannel {
 public:
  SymbolicChannel(std::span<const LoweredOperation> operations, size_t channel, uint32_t depth,
                  VerifyReport& report);
  Status run();

 private:
  /// What a slot holds and for whom.
  struct SlotContent {
    size_t op;
    int chunk;
    uint64_t index;  // round and slice
    ValueId value;
  };
  /// One writer; readers[i] counts what reader i has taken. A link has one reader, a published FIFO
  /// one per rank.
  struct SymbolicFifo {
    std::vector<SlotContent> ring;
    uint64_t written = 0;
    std::vector<uint64_t> taken;
  };
  struct Cell {
    ValueId value = kNothing;
    bool written = false;  // during the operation
  };
  /// A round that is carried out, for itself and for `times` - 1 that follow it and are alike.
  struct Round {
    uint64_t number;
    uint64_t times;
  };
  struct SymbolicCursor {
    size_t op = 0;
    size_t round = 0;  // in rounds_[op]
    size_t instruction = 0;
    uint32_t slice = 0;
  };
  /// Why a rank cannot go on: what it needs, and of whom.
  struct Blocked {
    std::string need;
    int peer;
  };

  int ranks() const { return static_cast<int>(operations_[0].programs.size()); }
  /// Ranks of an all_to_all_v differ in rounds, and in nothing that matters here.
  const Geometry& geometry(size_t op, int rank = 0) const {
    return operations_[op].programs[static_cast<size_t>(rank)].channels[channel_];
  }
  bool has_channel(size_t op) const {
    return operations_[op].programs[0].channels.size() > channel_;
  }
  uint64_t chunks(size_t op) const;
  uint64_t blocks(size_t op) const;  // of the larger buffer
  /// The chunks that `rank`'s Out, or In, holds.
  std::vector<int> chunks_of(size_t op, int rank, bool out) const;
  std::vector<Round> rounds_of(size_t op, bool every) const;
  /// Parts of a chunk that are carried out: rounds and slices.
  uint64_t indices(size_t op) const { return rounds_[op].size() * geometry(op).slices; }
  uint64_t part_length(size_t op, int rank, uint64_t length, uint64_t index) const {
    const Geometry& g = geometry(op, rank);
    const uint64_t round = rounds_[op][index / g.slices].number;
    return g.slice_length(length, round, static_cast<uint32_t>(index % g.slices));
  }
  uint64_t index_of(const SymbolicCursor& c) const {
    return c.round * geometry(c.op).slices + c.slice;
  }
  /// Where chunk `chunk` of In or Out lies among the cells of a rank; one place for both where they
  /// overlap.
  size_t cell_of(size_t op, int rank, bool out, int chunk, uint64_t index) const;

  void prepare_memory();
  SymbolicFifo& link(int from, int to);
  SymbolicFifo& published(int from);
  SymbolicFifo& fifo_of(const Operand& o, int rank, bool destination);
  static size_t reader_of(const Operand& o, int rank);
  bool full(const SymbolicFifo& fifo, int writer) const;

  /// Executes what `rank` can; whether it got any further.
  Result<bool> advance(int rank);
  Status step(int rank, const Program& program, const Instruction& i);
  bool blocked(int rank, Blocked* why);
  bool wait_blocked(int rank, const Instruction& i, Blocked* why) const;
  Status move(int rank, const Program& program, const Instruction& i);
  Result<ValueId> take(int rank, const Instruction& i, const Operand& o, uint64_t index);
  Result<ValueId> fold(int rank, const Instruction& i, const std::vector<ValueId>& sources);
  Status put(int rank, const Instruction& i, const Operand& o, uint64_t index, ValueId value);
  void count_crossing(int from, int to, uint64_t length);
  Status enter(int rank);
  void next(int rank);

  Status check_results();
  Status check_result(size_t op, int rank, int chunk, uint64_t index);
  /// What is wrong with a scan's result, or empty.
  std::string scan_fault(Collective collective, int rank, ValueId value) const;
  Status check_barrier(size_t op, int rank);
  Status check_left_over();
  Status deadlock();
  /// "operation 0 (all_reduce), rank 1, channel 0, round 0, step 3 (recv), slice 0 "
  std::string where(int rank) const;

  std::span<const LoweredOperation> operations_;
  size_t channel_;
  uint32_t depth_;
  VerifyReport& report_;
  Values values_;
  std::unique_ptr<Clocks> clocks_;          // only where peers' buffers or counters are used
  std::vector<bool> shared_;                // [op] whether peers touch buffers
  std::vector<std::vector<Round>> rounds_;  // [op]
  std::vector<SymbolicCursor> cursors_;     // [rank]
  std::vector<SymbolicFifo> links_;         // [from * ranks + to]
  std::vector<SymbolicFifo> published_;     // [from]
  std::vector<std::vector<std::vector<Cell>>> memory_;  // [op][rank][cell]
};

}  // namespace rondo::schedule
