// A measured shape: one collective on one number of elements, its buffers, and nccl-tests'
// bandwidth formulae.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "rondo/types.hpp"

namespace rondo::bench {

/// Messages round the ring of ranks, from each to the next; nccl-tests calls it sendrecv. It is
/// measured like a collective, but is none in rondo's interface.
inline constexpr auto kSendRecv = static_cast<Collective>(kCollectives);

/// "all_reduce", "sendrecv".
constexpr std::string_view name_of(Collective collective) {
  return collective == kSendRecv ? "sendrecv" : name(collective);
}
/// In sendrecv: the rank that sends to `rank`, and the rank that `rank` sends to.
constexpr int prev_of(int rank, int ranks) { return (rank + ranks - 1) % ranks; }
constexpr int next_of(int rank, int ranks) { return (rank + 1) % ranks; }
/// Whether a rank's output may be its input; never for all_to_all_v and sendrecv.
constexpr bool can_be_in_place(Collective collective) {
  return collective != Collective::kAllToAllV && collective != kSendRecv;
}

/// `count` is the collective's parameter: elements per rank for all_reduce, broadcast, reduce and
/// sendrecv, elements of one block for collectives with blocks (of an average one, for _v
/// collectives), 0 for barrier.
struct CallShape {
  Collective collective;
  DataType type;
  ReduceOp op;
  int root;
  size_t count;
};

constexpr bool reduces(Collective collective) { return internal::form_of(collective).reduces; }

/// Whether `rank` has an input, or an output: in some collectives only the root has.
constexpr bool reads(const CallShape& shape, int rank) {
  return !internal::form_of(shape.collective).only_root_reads || rank == shape.root;
}
constexpr bool writes(const CallShape& shape, int rank) {
  return !internal::form_of(shape.collective).only_root_writes || rank == shape.root;
}

/// The shape with the largest buffer that fits into `bytes`. nccl-tests rounds blocks down to 16
/// bytes; here they are rounded to one element, so that small sizes are not silently empty.
CallShape shape_of(Collective collective, DataType type, ReduceOp op, int root, size_t bytes,
                   int ranks);

/// Elements of each of `rank`'s blocks: `count` for each rank or, in _v collectives, the same total
/// in the proportions 1 : 3 : 5 : ... (all_to_all_v: rotated on every rank, so that senders and
/// receivers agree).
std::vector<size_t> block_counts(const CallShape& shape, int rank, int ranks);
/// Elements before block `rank` in this rank's buffer with a block for every rank.
size_t own_block_begin(const CallShape& shape, int rank, int ranks);

/// Elements of one rank's input and output buffer, out of place; the maximum over ranks.
size_t in_elements(const CallShape& shape, int ranks);
size_t out_elements(const CallShape& shape, int ranks);

/// The column "size": the larger of the two buffers, in bytes.
size_t size_bytes(const CallShape& shape, int ranks);

/// GB/s (1e9 bytes): size over time, and that times the collective's factor, which makes it the
/// rate of the busiest link.
double alg_bandwidth(const CallShape& shape, int ranks, double time_us);
double bus_factor(Collective collective, int ranks);

/// The fewest bytes that this rank must read from and write to memory.
struct LeastTraffic {
  size_t reads, writes;
};
LeastTraffic least_traffic(const CallShape& shape, int rank, int ranks);

}  // namespace rondo::bench
