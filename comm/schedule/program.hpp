// A program is a schedule made concrete: element ranges, rounds and slices, flat arrays that host
// and device walk alike.
//
// Geometry. A collective's data is `chunks` blocks of `block` elements. A channel owns [begin, end)
// of every block. It walks that range in rounds of `window` elements; inside a round every move is
// repeated for slices of `slice` elements:
//
//   for round in [0, rounds):  for step in steps:  for s in [0, slices):  move elements
//        begin + round * window + s * slice  ..  at most slice more, cut at the window, at end and
//        at the chunk's own length
//
// of the move's chunk, whose length stands in the instruction and whose beginning in each operand.
// A slice of length 0 is skipped by both its writer and its readers: lengths depend on (chunk,
// round, slice) alone, so they agree. Signals and waits happen once per round. A step hands all its
// slices over before the next one begins, which is why lowering keeps `slices` within the FIFOs'
// depth.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/schedule/schedule.hpp"
#include "rondo/status.hpp"

namespace rondo::schedule {

/// How the data of a _v collective is laid out, in elements, as one rank knows it: the blocks of
/// every buffer that has one for each rank. Empty for all other collectives.
struct BlockLayout {
  // [rank] of reduce_scatter_v, scatter_v, all_to_all_v
  std::vector<uint64_t> in_counts, in_offsets;
  // [rank] of all_gather_v, gather_v, all_to_all_v
  std::vector<uint64_t> out_counts, out_offsets;

  friend bool operator==(const BlockLayout&, const BlockLayout&) = default;
};
/// Elements of all blocks, and of the longest.
uint64_t total(const BlockLayout& layout);
uint64_t longest(const BlockLayout& layout);

/// The counts of the one buffer with a block for every rank, where there is one.
const std::vector<uint64_t>& blocks_of(const BlockLayout& layout, Collective collective);

/// Whether the layout has exactly the blocks of the collective.
bool has_every_block(const BlockLayout& layout, Collective collective, size_t ranks);

/// One block of `count` for everybody, one after the other; empty for all but _v collectives.
BlockLayout equal_layout(Collective collective, int ranks, uint64_t count);

/// An operand made concrete: its chunk begins `offset` elements into the buffer (slots: 0).
struct Location : Operand {
  uint64_t offset = 0;
};

/// One step of a program. Sources are operands [first, first + sources), destinations follow them.
struct Instruction {
  Action action;
  Flag flag;
  bool finishes;
  uint16_t sources;
  uint16_t destinations;
  int32_t peer;
  int32_t chunk;
  uint32_t first;
  uint64_t length;  // elements of the chunk
};

/// Elements of one channel's part. All counts are elements.
struct Geometry {
  uint64_t total;       // all chunks together (all_to_all_v: what this rank sends and gets)
  uint64_t block;       // of the longest chunk
  uint64_t begin, end;  // this channel's range of every block
  uint64_t window;      // of a round
  uint64_t slice;
  uint32_t slices;
  uint64_t rounds;

  /// Where (round, s) starts inside a chunk, and how many elements it has in one of `length`.
  constexpr uint64_t slice_begin(uint64_t round, uint32_t s) const {
    return begin + round * window + s * slice;
  }
  constexpr uint64_t slice_length(uint64_t length, uint64_t round, uint32_t s) const {
    const uint64_t from = slice_begin(round, s);
    const uint64_t to =
        std::min(std::min(from + slice, begin + (round + 1) * window), std::min(end, length));
    return to > from ? to - from : 0;
  }
};

/// One channel of one rank. Instructions and operands are shared by the channels.
struct Program {
  std::vector<Instruction> instructions;
  std::vector<Location> operands;
  std::vector<Geometry> channels;
  /// kSignal instructions times rounds; the same for every channel, with or without elements.
  uint32_t signals = 0;
};

/// Limits::min_slice_bytes, and the same between hosts: a message over a socket costs each end some 6 us, in which as
/// many bytes could have been sent. And of a GPU's channel: to hand a slot over took it 4 to 6 us on an H200, in which
/// it copies 64 KiB twice.
constexpr size_t kLeastSlice = 8192;
constexpr size_t kLeastDeviceSlice = size_t{64} << 10;
constexpr size_t kLeastWireSlice = size_t{64} << 10;

/// What lowering needs to know about the machinery.
struct Limits {
  size_t element_bytes;  // size of the data type
  size_t slot_bytes;     // capacity of a slot; 0 when no operand is a slot
  uint32_t depth;        // FIFO depth
  int channels = 1;      // how many channels may share the work
  /// Boundaries of chunks and channels are multiples of this many elements; 0: 64 bytes' worth.
  uint64_t align = 0;
  /// A chunk is cut into several slices (to overlap) only down to this.
  size_t min_slice_bytes = kLeastSlice;
};

/// The field's word for an instruction; see name_of(Step).
const char* name_of(const Program& program, size_t instruction);

/// The elements that a rank moves, over all channels and rounds.
struct Traffic {
  /// Into slots (each destination), published (once, whatever the number of readers), or written
  /// into peers' buffers.
  uint64_t elements_sent;
  uint64_t elements_fetched;  // read from published slots and peers' buffers
  /// What passes between this rank and the others because of it: what it sends (a published slot
  /// once for every reader) and what it reads from peers' buffers. What it receives in slots counts
  /// for the sender.
  uint64_t elements_moved;
};
Traffic traffic_of(const Program& program, int ranks);

/// What ranks of one host send to other hosts, and what these send to it.
struct Crossing {
  uint64_t elements_out = 0, elements_in = 0;
  friend bool operator==(const Crossing&, const Crossing&) = default;
};

/// Adds what `rank` sends to other hosts by its program, to the crossings of every host.
void add_crossings(const Program& program, int rank, const base::HostMap& hosts,
                   std::vector<Crossing>& crossings);

/// Pure: schedule + count (the collective's own `count` argument) + limits. The slices of a round
/// fit the FIFOs: with slots at most depth / 2, but one at least, whatever the schedule. A barrier
/// ignores `count`: it moves one element at most. Schedules without slots are one round of one
/// slice. A channel without elements has no rounds, except that schedules with signals have their
/// one round on every channel (unless count is 0), so that counters stay equal.
/// A _v collective is lowered by its layout and ignores `count`. Ranks of an all_to_all_v know
/// their own counts only: slices are as large as slots whatever they are, one channel does the
/// work, and ranks may differ in rounds. kInvalidArgument when a slot cannot hold one element or
/// depth is too small for the schedule.
Result<Program> lower(const Schedule& schedule, uint64_t count, const Limits& limits,
                      const BlockLayout& layout = {});

}  // namespace rondo::schedule
