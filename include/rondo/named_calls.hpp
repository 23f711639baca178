// The collectives by name: each is one line around a Call. Communicator has them all.
#pragma once

#include <cstddef>
#include <span>

#include "rondo/call.hpp"
#include "rondo/memory.hpp"
#include "rondo/status.hpp"
#include "rondo/types.hpp"

namespace rondo {

/// `Self` is the class that derives from this one, and has run() and start() of a Call.
template <class Self>
class NamedCalls {
  using C = Collective;

 public:
  /// The counts or offsets of a _v call: one number for each rank.
  using Counts = std::span<const size_t>;

  /// out[i] = op over all ranks of in[i], for `count` elements; out is the same bits on every rank.
  Status all_reduce(const void* in, void* out, size_t count, DataType type,
                    ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().run({C::kAllReduce, in, out, count, type, op}, options);
  }
  /// in: size() blocks of `count`; out: the reduction of block rank() of every rank.
  Status reduce_scatter(const void* in, void* out, size_t count, DataType type,
                        ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().run({C::kReduceScatter, in, out, count, type, op}, options);
  }
  /// in: `count` elements; out: size() blocks of `count`; block r is rank r's in.
  Status all_gather(const void* in, void* out, size_t count, DataType type,
                    const CallOptions& options = {}) {
    return self().run({C::kAllGather, in, out, count, type}, options);
  }
  /// out on every rank = in of `root`; elsewhere in is ignored and may be null. A root does not
  /// wait for other ranks, so it learns of a disagreement from a later call, at most 64 calls
  /// later.
  Status broadcast(const void* in, void* out, size_t count, DataType type, int root,
                   const CallOptions& options = {}) {
    return self().run({C::kBroadcast, in, out, count, type, ReduceOp::kSum, root}, options);
  }
  /// out on `root` = op over all ranks of in; unused elsewhere, where the call does not wait, as
  /// above.
  Status reduce(const void* in, void* out, size_t count, DataType type, ReduceOp op, int root,
                const CallOptions& options = {}) {
    return self().run({C::kReduce, in, out, count, type, op, root}, options);
  }
  /// in: `count` elements; out on `root`: size() blocks of `count`; block r is rank r's in. out is
  /// ignored elsewhere.
  Status gather(const void* in, void* out, size_t count, DataType type, int root,
                const CallOptions& options = {}) {
    return self().run({C::kGather, in, out, count, type, ReduceOp::kSum, root}, options);
  }
  /// in on `root`: size() blocks of `count`, ignored elsewhere; out: block rank() of it.
  Status scatter(const void* in, void* out, size_t count, DataType type, int root,
                 const CallOptions& options = {}) {
    return self().run({C::kScatter, in, out, count, type, ReduceOp::kSum, root}, options);
  }
  /// in, out: size() blocks of `count`; block r of out is block rank() of rank r's in.
  Status all_to_all(const void* in, void* out, size_t count, DataType type,
                    const CallOptions& options = {}) {
    return self().run({C::kAllToAll, in, out, count, type}, options);
  }
  /// all_gather with blocks of different sizes: out holds counts[r] elements from rank r, beginning
  /// at element offsets[r]; empty offsets: blocks follow each other. counts and offsets have an
  /// entry per rank and are the same on every rank. in: counts[rank()] elements; in place it is its
  /// own block. A _v call is prepared anew each time, unless it repeats the last one.
  Status all_gather_v(const void* in, void* out, Counts counts, Counts offsets, DataType type,
                      const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().run(
        {.collective = C::kAllGatherV, .in = in, .out = out, .type = type, .blocks = &blocks},
        options);
  }
  /// reduce_scatter likewise: in holds counts[r] elements for rank r at element offsets[r].
  Status reduce_scatter_v(const void* in, void* out, Counts counts, Counts offsets, DataType type,
                          ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().run({.collective = C::kReduceScatterV,
                       .in = in,
                       .out = out,
                       .type = type,
                       .op = op,
                       .blocks = &blocks},
                      options);
  }
  /// all_to_all likewise: in_counts[r] elements at element in_offsets[r] of in go to rank r, and
  /// out_counts[r] elements come from it to element out_offsets[r] of out. Each rank passes its own
  /// counts; sender and receiver must agree. Never in place.
  Status all_to_all_v(const void* in, Counts in_counts, Counts in_offsets, void* out,
                      Counts out_counts, Counts out_offsets, DataType type,
                      const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = in_counts,
                        .in_offsets = in_offsets,
                        .out_counts = out_counts,
                        .out_offsets = out_offsets};
    return self().run(
        {.collective = C::kAllToAllV, .in = in, .out = out, .type = type, .blocks = &blocks},
        options);
  }
  /// gather likewise: on `root` out holds counts[r] elements from rank r, at element offsets[r]. Every
  /// rank passes all counts and offsets, the same as the root. (In MPI only the root does.)
  Status gather_v(const void* in, void* out, Counts counts, Counts offsets, DataType type, int root,
                  const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().run({.collective = C::kGatherV,
                       .in = in,
                       .out = out,
                       .type = type,
                       .root = root,
                       .blocks = &blocks},
                      options);
  }
  /// scatter likewise: in on `root` holds counts[r] elements for rank r, at element offsets[r].
  Status scatter_v(const void* in, void* out, Counts counts, Counts offsets, DataType type,
                   int root, const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().run({.collective = C::kScatterV,
                       .in = in,
                       .out = out,
                       .type = type,
                       .root = root,
                       .blocks = &blocks},
                      options);
  }
  /// Prefix reductions: out[i] = op over in[i] of ranks 0 to rank(), in this order (MPI_Scan);
  /// exclusive_scan: to rank() - 1 (MPI_Exscan). The exclusive result of rank 0 is the operator's
  /// identity: 0 of a sum, 1 of a product, infinity of a minimum, all ones of a bitwise and (MPI
  /// leaves it undefined). A rank may return before later ranks call, so it may learn of a disagreement
  /// from a later call, as the root of a broadcast does. There is no average. Small floats are
  /// rounded once (two-shot), or once per rank (ring).
  Status inclusive_scan(const void* in, void* out, size_t count, DataType type,
                        ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().run({C::kInclusiveScan, in, out, count, type, op}, options);
  }
  Status exclusive_scan(const void* in, void* out, size_t count, DataType type,
                        ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().run({C::kExclusiveScan, in, out, count, type, op}, options);
  }
  /// Returns when every rank has called it.
  Status barrier(const CallOptions& options = {}) { return self().run({C::kBarrier}, options); }

  /// Asynchronous forms: they return at once, and rondo's progress thread executes the operations
  /// in issue order. A wrong argument returns a Work that has already ended with the error.
  Work all_reduce_async(const void* in, void* out, size_t count, DataType type,
                        ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().start({C::kAllReduce, in, out, count, type, op}, options);
  }
  Work reduce_scatter_async(const void* in, void* out, size_t count, DataType type,
                            ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().start({C::kReduceScatter, in, out, count, type, op}, options);
  }
  Work all_gather_async(const void* in, void* out, size_t count, DataType type,
                        const CallOptions& options = {}) {
    return self().start({C::kAllGather, in, out, count, type}, options);
  }
  Work broadcast_async(const void* in, void* out, size_t count, DataType type, int root,
                       const CallOptions& options = {}) {
    return self().start({C::kBroadcast, in, out, count, type, ReduceOp::kSum, root}, options);
  }
  Work reduce_async(const void* in, void* out, size_t count, DataType type, ReduceOp op, int root,
                    const CallOptions& options = {}) {
    return self().start({C::kReduce, in, out, count, type, op, root}, options);
  }
  Work gather_async(const void* in, void* out, size_t count, DataType type, int root,
                    const CallOptions& options = {}) {
    return self().start({C::kGather, in, out, count, type, ReduceOp::kSum, root}, options);
  }
  Work scatter_async(const void* in, void* out, size_t count, DataType type, int root,
                     const CallOptions& options = {}) {
    return self().start({C::kScatter, in, out, count, type, ReduceOp::kSum, root}, options);
  }
  Work all_to_all_async(const void* in, void* out, size_t count, DataType type,
                        const CallOptions& options = {}) {
    return self().start({C::kAllToAll, in, out, count, type}, options);
  }
  Work all_gather_v_async(const void* in, void* out, Counts counts, Counts offsets, DataType type,
                          const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().start(
        {.collective = C::kAllGatherV, .in = in, .out = out, .type = type, .blocks = &blocks},
        options);
  }
  Work reduce_scatter_v_async(const void* in, void* out, Counts counts, Counts offsets,
                              DataType type, ReduceOp op = ReduceOp::kSum,
                              const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().start({.collective = C::kReduceScatterV,
                         .in = in,
                         .out = out,
                         .type = type,
                         .op = op,
                         .blocks = &blocks},
                        options);
  }
  Work all_to_all_v_async(const void* in, Counts in_counts, Counts in_offsets, void* out,
                          Counts out_counts, Counts out_offsets, DataType type,
                          const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = in_counts,
                        .in_offsets = in_offsets,
                        .out_counts = out_counts,
                        .out_offsets = out_offsets};
    return self().start(
        {.collective = C::kAllToAllV, .in = in, .out = out, .type = type, .blocks = &blocks},
        options);
  }
  Work gather_v_async(const void* in, void* out, Counts counts, Counts offsets, DataType type,
                      int root, const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().start({.collective = C::kGatherV,
                         .in = in,
                         .out = out,
                         .type = type,
                         .root = root,
                         .blocks = &blocks},
                        options);
  }
  Work scatter_v_async(const void* in, void* out, Counts counts, Counts offsets, DataType type,
                       int root, const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().start({.collective = C::kScatterV,
                         .in = in,
                         .out = out,
                         .type = type,
                         .root = root,
                         .blocks = &blocks},
                        options);
  }
  Work inclusive_scan_async(const void* in, void* out, size_t count, DataType type,
                            ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().start({C::kInclusiveScan, in, out, count, type, op}, options);
  }
  Work exclusive_scan_async(const void* in, void* out, size_t count, DataType type,
                            ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    return self().start({C::kExclusiveScan, in, out, count, type, op}, options);
  }
  Work barrier_async(const CallOptions& options = {}) {
    return self().start({C::kBarrier}, options);
  }
  /// The same calls on arrays, vectors and spans (InSpan, OutSpan): count and type are theirs, and
  /// the operator is a sum where only options are passed. kInvalidArgument names a buffer whose size
  /// does not fit the call: In and Out of an all_reduce hold the same number, Out of an all_gather
  /// size() times as many as In. In _v calls the buffer of one block holds exactly its count, the
  /// buffer of all blocks at least up to the end of the last. A buffer that this rank does not use
  /// (broadcast's In except on the root, say) may be anything, such as {}.
  Status all_reduce(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                    const CallOptions& options = {}) {
    return self().run({.collective = C::kAllReduce, .op = op}, in, out, options);
  }
  Status all_reduce(InSpan in, OutSpan out, const CallOptions& options) {
    return all_reduce(in, out, ReduceOp::kSum, options);
  }
  Work all_reduce_async(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                        const CallOptions& options = {}) {
    return self().start({.collective = C::kAllReduce, .op = op}, in, out, options);
  }
  Work all_reduce_async(InSpan in, OutSpan out, const CallOptions& options) {
    return all_reduce_async(in, out, ReduceOp::kSum, options);
  }
  Status reduce_scatter(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                        const CallOptions& options = {}) {
    return self().run({.collective = C::kReduceScatter, .op = op}, in, out, options);
  }
  Status reduce_scatter(InSpan in, OutSpan out, const CallOptions& options) {
    return reduce_scatter(in, out, ReduceOp::kSum, options);
  }
  Work reduce_scatter_async(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                            const CallOptions& options = {}) {
    return self().start({.collective = C::kReduceScatter, .op = op}, in, out, options);
  }
  Work reduce_scatter_async(InSpan in, OutSpan out, const CallOptions& options) {
    return reduce_scatter_async(in, out, ReduceOp::kSum, options);
  }
  Status all_gather(InSpan in, OutSpan out, const CallOptions& options = {}) {
    return self().run({.collective = C::kAllGather}, in, out, options);
  }
  Work all_gather_async(InSpan in, OutSpan out, const CallOptions& options = {}) {
    return self().start({.collective = C::kAllGather}, in, out, options);
  }
  Status broadcast(InSpan in, OutSpan out, int root, const CallOptions& options = {}) {
    return self().run({.collective = C::kBroadcast, .root = root}, in, out, options);
  }
  Work broadcast_async(InSpan in, OutSpan out, int root, const CallOptions& options = {}) {
    return self().start({.collective = C::kBroadcast, .root = root}, in, out, options);
  }
  Status reduce(InSpan in, OutSpan out, ReduceOp op, int root, const CallOptions& options = {}) {
    return self().run({.collective = C::kReduce, .op = op, .root = root}, in, out, options);
  }
  Work reduce_async(InSpan in, OutSpan out, ReduceOp op, int root,
                    const CallOptions& options = {}) {
    return self().start({.collective = C::kReduce, .op = op, .root = root}, in, out, options);
  }
  Status gather(InSpan in, OutSpan out, int root, const CallOptions& options = {}) {
    return self().run({.collective = C::kGather, .root = root}, in, out, options);
  }
  Work gather_async(InSpan in, OutSpan out, int root, const CallOptions& options = {}) {
    return self().start({.collective = C::kGather, .root = root}, in, out, options);
  }
  Status scatter(InSpan in, OutSpan out, int root, const CallOptions& options = {}) {
    return self().run({.collective = C::kScatter, .root = root}, in, out, options);
  }
  Work scatter_async(InSpan in, OutSpan out, int root, const CallOptions& options = {}) {
    return self().start({.collective = C::kScatter, .root = root}, in, out, options);
  }
  Status all_to_all(InSpan in, OutSpan out, const CallOptions& options = {}) {
    return self().run({.collective = C::kAllToAll}, in, out, options);
  }
  Work all_to_all_async(InSpan in, OutSpan out, const CallOptions& options = {}) {
    return self().start({.collective = C::kAllToAll}, in, out, options);
  }
  Status inclusive_scan(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                        const CallOptions& options = {}) {
    return self().run({.collective = C::kInclusiveScan, .op = op}, in, out, options);
  }
  Status inclusive_scan(InSpan in, OutSpan out, const CallOptions& options) {
    return inclusive_scan(in, out, ReduceOp::kSum, options);
  }
  Work inclusive_scan_async(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                            const CallOptions& options = {}) {
    return self().start({.collective = C::kInclusiveScan, .op = op}, in, out, options);
  }
  Work inclusive_scan_async(InSpan in, OutSpan out, const CallOptions& options) {
    return inclusive_scan_async(in, out, ReduceOp::kSum, options);
  }
  Status exclusive_scan(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                        const CallOptions& options = {}) {
    return self().run({.collective = C::kExclusiveScan, .op = op}, in, out, options);
  }
  Status exclusive_scan(InSpan in, OutSpan out, const CallOptions& options) {
    return exclusive_scan(in, out, ReduceOp::kSum, options);
  }
  Work exclusive_scan_async(InSpan in, OutSpan out, ReduceOp op = ReduceOp::kSum,
                            const CallOptions& options = {}) {
    return self().start({.collective = C::kExclusiveScan, .op = op}, in, out, options);
  }
  Work exclusive_scan_async(InSpan in, OutSpan out, const CallOptions& options) {
    return exclusive_scan_async(in, out, ReduceOp::kSum, options);
  }
  Status all_gather_v(InSpan in, OutSpan out, Counts counts, Counts offsets,
                      const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().run({.collective = C::kAllGatherV, .blocks = &blocks}, in, out, options);
  }
  Work all_gather_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets,
                          const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().start({.collective = C::kAllGatherV, .blocks = &blocks}, in, out, options);
  }
  Status reduce_scatter_v(InSpan in, OutSpan out, Counts counts, Counts offsets,
                          ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().run({.collective = C::kReduceScatterV, .op = op, .blocks = &blocks}, in, out,
                      options);
  }
  Status reduce_scatter_v(InSpan in, OutSpan out, Counts counts, Counts offsets,
                          const CallOptions& options) {
    return reduce_scatter_v(in, out, counts, offsets, ReduceOp::kSum, options);
  }
  Work reduce_scatter_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets,
                              ReduceOp op = ReduceOp::kSum, const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().start({.collective = C::kReduceScatterV, .op = op, .blocks = &blocks}, in, out,
                        options);
  }
  Work reduce_scatter_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets,
                              const CallOptions& options) {
    return reduce_scatter_v_async(in, out, counts, offsets, ReduceOp::kSum, options);
  }
  Status gather_v(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                  const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().run({.collective = C::kGatherV, .root = root, .blocks = &blocks}, in, out,
                      options);
  }
  Work gather_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                      const CallOptions& options = {}) {
    const Blocks blocks{.out_counts = counts, .out_offsets = offsets};
    return self().start({.collective = C::kGatherV, .root = root, .blocks = &blocks}, in, out,
                        options);
  }
  Status scatter_v(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                   const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().run({.collective = C::kScatterV, .root = root, .blocks = &blocks}, in, out,
                      options);
  }
  Work scatter_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                       const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = counts, .in_offsets = offsets};
    return self().start({.collective = C::kScatterV, .root = root, .blocks = &blocks}, in, out,
                        options);
  }
  Status all_to_all_v(InSpan in, Counts in_counts, Counts in_offsets, OutSpan out,
                      Counts out_counts, Counts out_offsets, const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = in_counts,
                        .in_offsets = in_offsets,
                        .out_counts = out_counts,
                        .out_offsets = out_offsets};
    return self().run({.collective = C::kAllToAllV, .blocks = &blocks}, in, out, options);
  }
  Work all_to_all_v_async(InSpan in, Counts in_counts, Counts in_offsets, OutSpan out,
                          Counts out_counts, Counts out_offsets, const CallOptions& options = {}) {
    const Blocks blocks{.in_counts = in_counts,
                        .in_offsets = in_offsets,
                        .out_counts = out_counts,
                        .out_offsets = out_offsets};
    return self().start({.collective = C::kAllToAllV, .blocks = &blocks}, in, out, options);
  }

 private:
  friend Self;
  NamedCalls() = default;
  Self& self() { return static_cast<Self&>(*this); }
};

}  // namespace rondo
