// What is measured: one collective on one number of elements, the buffers it needs, and nccl-tests'
// bandwidth formulae.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "rondo/types.hpp"

namespace rondo::bench {

/// Messages round the ring of ranks, from each to the next, which nccl-tests calls sendrecv: what
/// is measured like a collective without being one. rondo's own functions do not know it.
inline constexpr auto kSendRecv = static_cast<Collective>(kCollectives);

/// "all_reduce", "sendrecv".
constexpr std::string_view name_of(Collective collective) {
  return collective == kSendRecv ? "sendrecv" : name(collective);
}
/// Who sends to `rank` in sendrecv, and whom it sends to.
constexpr int prev_of(int rank, int ranks) { return (rank + ranks - 1) % ranks; }
constexpr int next_of(int rank, int ranks) { return (rank + 1) % ranks; }
/// Whether a rank's output may be its input; no library's all_to_all_v does so, and no sendrecv.
constexpr bool can_be_in_place(Collective collective) {
  return collective != Collective::kAllToAllV && collective != kSendRecv;
}

/// `count` is the collective's parameter: elements per rank for all_reduce, broadcast, reduce and
/// sendrecv, elements of one block for those with blocks (of an average one, for _v collectives), 0
/// for barrier.
struct Shape {
  Collective collective;
  DataType type;
  ReduceOp op;
  int root;
  size_t count;
};

constexpr bool reduces(Collective collective) { return form_of(collective).reduces; }

/// Whether `rank` has an input, or an output: on some collectives the root alone does.
constexpr bool reads(const Shape& shape, int rank) {
  return !form_of(shape.collective).only_root_reads || rank == shape.root;
}
constexpr bool writes(const Shape& shape, int rank) {
  return !form_of(shape.collective).only_root_writes || rank == shape.root;
}

/// The shape whose largest buffer is the largest that fits `bytes`. nccl-tests rounds blocks down
/// to 16 bytes; here one element is the grain, so that small sizes are not silently empty.
Shape shape_of(Collective collective, DataType type, ReduceOp op, int root, size_t bytes,
               int ranks);

/// Elements of each block that `rank` has: `count` for each rank or, in _v collectives, as much in
/// all in the proportions 1 : 3 : 5 : ... (all_to_all_v: beginning with another one on every rank,
/// so that what one sends is what the other expects).
std::vector<size_t> block_counts(const Shape& shape, int rank, int ranks);
/// Elements before block `rank` in this rank's buffer with a block for every rank.
size_t own_block_begin(const Shape& shape, int rank, int ranks);

/// Elements of the input and output buffer of one rank, out of place; the most of any rank.
size_t in_elements(const Shape& shape, int ranks);
size_t out_elements(const Shape& shape, int ranks);

/// What the column "size" holds: the larger of the two buffers, in bytes.
size_t size_bytes(const Shape& shape, int ranks);

/// GB/s (1e9 bytes): size over time, and that times the collective's factor, which makes it the
/// rate of the busiest link.
double alg_bandwidth(const Shape& shape, int ranks, double time_us);
double bus_factor(Collective collective, int ranks);

/// The fewest bytes that this rank must read from and write to memory.
struct Traffic {
  size_t reads, writes;
};
Traffic least_traffic(const Shape& shape, int rank, int ranks);

}  // namespace rondo::bench
