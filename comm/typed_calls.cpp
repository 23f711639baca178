// Calls on typed buffers: checks that the buffers fit each other, and makes the call on pointers.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "comm/base/clock.hpp"
#include "comm/base/refuse.hpp"
#include "comm/communicator_impl.hpp"

namespace rondo {

using comm::refuse;
using C = Collective;
using Counts = Communicator::Counts;

namespace {

/// The blocks of a buffer of a _v collective, if it has one for each rank.
struct Blocks {
  Counts counts{}, offsets{};
};

/// A call, as far as the sizes of its buffers go.
struct TypedCall {
  Collective collective;
  const InSpan& in;
  const OutSpan& out;
  Blocks in_blocks{}, out_blocks{};
  int root = 0;

  TypedCall(Collective which, const InSpan& read, const OutSpan& written, int of = 0)
      : collective(which), in(read), out(written), root(of) {}
  TypedCall(Collective which, const InSpan& read, const OutSpan& written, Blocks ins, Blocks outs,
            int of = 0)
      : collective(which), in(read), out(written), in_blocks(ins), out_blocks(outs), root(of) {}
};

struct Fitted {
  size_t count;
  DataType type;
};

Status check_size(const TypedCall& call, const char* what, size_t has, size_t needs) {
  if (has == needs) return {};
  return refuse(fmt::format("{}: {} holds {} elements, and {} fit the other arguments",
                            name(call.collective), what, has, needs));
}

/// Elements up to the end of the last block.
size_t end_of(const Blocks& blocks) {
  size_t end = 0, at = 0;
  for (size_t b = 0; b < blocks.counts.size(); ++b) {
    const size_t begin = blocks.offsets.empty() ? at : blocks.offsets[b];
    if (blocks.counts[b] > 0) end = std::max(end, begin + blocks.counts[b]);
    at += blocks.counts[b];
  }
  return end;
}

/// One buffer of a _v call. Wrong numbers of counts and offsets are refused by the call itself.
Status check_blocks(const TypedCall& call, const char* what, size_t has, const Blocks& own,
                    const Blocks& others, size_t rank, size_t ranks) {
  const auto whole = [ranks](const Blocks& b) {
    return b.counts.size() == ranks && (b.offsets.empty() || b.offsets.size() == ranks);
  };
  if (own.counts.empty()) {
    return whole(others) ? check_size(call, what, has, others.counts[rank]) : Status();
  }
  const size_t end = whole(own) ? end_of(own) : 0;
  if (has >= end) return {};
  return refuse(fmt::format("{}: {} holds {} elements, and its blocks end at {}",
                            name(call.collective), what, has, end));
}

/// What count and type the call on pointers takes (no count: a _v call), or why nothing fits.
Result<Fitted> fit(const TypedCall& call, int rank, int size) {
  const Form form = form_of(call.collective);
  const bool reads = !form.only_root_reads || rank == call.root;
  const bool writes = !form.only_root_writes || rank == call.root;
  if (reads && writes && call.in.type() != call.out.type()) {
    return refuse(fmt::format("{}: in holds {}, out holds {}", name(call.collective),
                              name(call.in.type()), name(call.out.type())));
  }
  const auto ranks = static_cast<size_t>(size);
  const DataType type = reads ? call.in.type() : call.out.type();
  if (is_varying(call.collective)) {
    const auto own = static_cast<size_t>(rank);
    if (reads) {
      RONDO_TRY(
          check_blocks(call, "in", call.in.size(), call.in_blocks, call.out_blocks, own, ranks));
    }
    if (writes) {
      RONDO_TRY(
          check_blocks(call, "out", call.out.size(), call.out_blocks, call.in_blocks, own, ranks));
    }
    return Fitted{.count = 0, .type = type};
  }
  // The buffer that every rank has says the count.
  const bool by_out = !reads || form.out == Holds::kOne;
  size_t count = by_out ? call.out.size() : call.in.size();
  if ((by_out ? form.out : form.in) == Holds::kEach) count /= ranks;
  if (reads) RONDO_TRY(check_size(call, "in", call.in.size(), elements(form.in, count, ranks)));
  if (writes) RONDO_TRY(check_size(call, "out", call.out.size(), elements(form.out, count, ranks)));
  return Fitted{.count = count, .type = type};
}

template <class Call>
Status run_typed(Communicator::Impl& impl, const TypedCall& typed, const Call& call) {
  const auto fitted = impl.guarded([&] { return fit(typed, impl.rank(), impl.size()); });
  return fitted.ok() ? call(fitted->count, fitted->type) : impl.refuse_call(fitted.status());
}

template <class Call>
Work start_typed(Communicator::Impl& impl, const TypedCall& typed, const Call& call) {
  const auto fitted = impl.guarded([&] { return fit(typed, impl.rank(), impl.size()); });
  if (fitted.ok()) return call(fitted->count, fitted->type);
  comm::WorkState state;
  (void)impl.guarded([&] {
    state = comm::issued();
    return Status();
  });
  const Status refused = impl.refuse_call(fitted.status());
  if (state) state->end(refused, base::now_ns());
  return Work(std::move(state));
}

}  // namespace

Status Communicator::all_reduce(InSpan in, OutSpan out, ReduceOp op, const CallOptions& options) {
  return run_typed(*impl_, {C::kAllReduce, in, out}, [&](size_t n, DataType t) {
    return all_reduce(in.data(), out.data(), n, t, op, options);
  });
}
Work Communicator::all_reduce_async(InSpan in, OutSpan out, ReduceOp op,
                                    const CallOptions& options) {
  return start_typed(*impl_, {C::kAllReduce, in, out}, [&](size_t n, DataType t) {
    return all_reduce_async(in.data(), out.data(), n, t, op, options);
  });
}

Status Communicator::reduce_scatter(InSpan in, OutSpan out, ReduceOp op,
                                    const CallOptions& options) {
  return run_typed(*impl_, {C::kReduceScatter, in, out}, [&](size_t n, DataType t) {
    return reduce_scatter(in.data(), out.data(), n, t, op, options);
  });
}
Work Communicator::reduce_scatter_async(InSpan in, OutSpan out, ReduceOp op,
                                        const CallOptions& options) {
  return start_typed(*impl_, {C::kReduceScatter, in, out}, [&](size_t n, DataType t) {
    return reduce_scatter_async(in.data(), out.data(), n, t, op, options);
  });
}

Status Communicator::all_gather(InSpan in, OutSpan out, const CallOptions& options) {
  return run_typed(*impl_, {C::kAllGather, in, out}, [&](size_t n, DataType t) {
    return all_gather(in.data(), out.data(), n, t, options);
  });
}
Work Communicator::all_gather_async(InSpan in, OutSpan out, const CallOptions& options) {
  return start_typed(*impl_, {C::kAllGather, in, out}, [&](size_t n, DataType t) {
    return all_gather_async(in.data(), out.data(), n, t, options);
  });
}

Status Communicator::broadcast(InSpan in, OutSpan out, int root, const CallOptions& options) {
  return run_typed(*impl_, {C::kBroadcast, in, out, root}, [&](size_t n, DataType t) {
    return broadcast(in.data(), out.data(), n, t, root, options);
  });
}
Work Communicator::broadcast_async(InSpan in, OutSpan out, int root, const CallOptions& options) {
  return start_typed(*impl_, {C::kBroadcast, in, out, root}, [&](size_t n, DataType t) {
    return broadcast_async(in.data(), out.data(), n, t, root, options);
  });
}

Status Communicator::reduce(InSpan in, OutSpan out, ReduceOp op, int root,
                            const CallOptions& options) {
  return run_typed(*impl_, {C::kReduce, in, out, root}, [&](size_t n, DataType t) {
    return reduce(in.data(), out.data(), n, t, op, root, options);
  });
}
Work Communicator::reduce_async(InSpan in, OutSpan out, ReduceOp op, int root,
                                const CallOptions& options) {
  return start_typed(*impl_, {C::kReduce, in, out, root}, [&](size_t n, DataType t) {
    return reduce_async(in.data(), out.data(), n, t, op, root, options);
  });
}

Status Communicator::gather(InSpan in, OutSpan out, int root, const CallOptions& options) {
  return run_typed(*impl_, {C::kGather, in, out, root}, [&](size_t n, DataType t) {
    return gather(in.data(), out.data(), n, t, root, options);
  });
}
Work Communicator::gather_async(InSpan in, OutSpan out, int root, const CallOptions& options) {
  return start_typed(*impl_, {C::kGather, in, out, root}, [&](size_t n, DataType t) {
    return gather_async(in.data(), out.data(), n, t, root, options);
  });
}

Status Communicator::scatter(InSpan in, OutSpan out, int root, const CallOptions& options) {
  return run_typed(*impl_, {C::kScatter, in, out, root}, [&](size_t n, DataType t) {
    return scatter(in.data(), out.data(), n, t, root, options);
  });
}
Work Communicator::scatter_async(InSpan in, OutSpan out, int root, const CallOptions& options) {
  return start_typed(*impl_, {C::kScatter, in, out, root}, [&](size_t n, DataType t) {
    return scatter_async(in.data(), out.data(), n, t, root, options);
  });
}

Status Communicator::all_to_all(InSpan in, OutSpan out, const CallOptions& options) {
  return run_typed(*impl_, {C::kAllToAll, in, out}, [&](size_t n, DataType t) {
    return all_to_all(in.data(), out.data(), n, t, options);
  });
}
Work Communicator::all_to_all_async(InSpan in, OutSpan out, const CallOptions& options) {
  return start_typed(*impl_, {C::kAllToAll, in, out}, [&](size_t n, DataType t) {
    return all_to_all_async(in.data(), out.data(), n, t, options);
  });
}

Status Communicator::inclusive_scan(InSpan in, OutSpan out, ReduceOp op,
                                    const CallOptions& options) {
  return run_typed(*impl_, {C::kInclusiveScan, in, out}, [&](size_t n, DataType t) {
    return inclusive_scan(in.data(), out.data(), n, t, op, options);
  });
}
Work Communicator::inclusive_scan_async(InSpan in, OutSpan out, ReduceOp op,
                                        const CallOptions& options) {
  return start_typed(*impl_, {C::kInclusiveScan, in, out}, [&](size_t n, DataType t) {
    return inclusive_scan_async(in.data(), out.data(), n, t, op, options);
  });
}

Status Communicator::exclusive_scan(InSpan in, OutSpan out, ReduceOp op,
                                    const CallOptions& options) {
  return run_typed(*impl_, {C::kExclusiveScan, in, out}, [&](size_t n, DataType t) {
    return exclusive_scan(in.data(), out.data(), n, t, op, options);
  });
}
Work Communicator::exclusive_scan_async(InSpan in, OutSpan out, ReduceOp op,
                                        const CallOptions& options) {
  return start_typed(*impl_, {C::kExclusiveScan, in, out}, [&](size_t n, DataType t) {
    return exclusive_scan_async(in.data(), out.data(), n, t, op, options);
  });
}

Status Communicator::all_gather_v(InSpan in, OutSpan out, Counts counts, Counts offsets,
                                  const CallOptions& options) {
  return run_typed(*impl_, {C::kAllGatherV, in, out, Blocks{}, Blocks{counts, offsets}},
                   [&](size_t, DataType t) {
                     return all_gather_v(in.data(), out.data(), counts, offsets, t, options);
                   });
}
Work Communicator::all_gather_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets,
                                      const CallOptions& options) {
  return start_typed(*impl_, {C::kAllGatherV, in, out, Blocks{}, Blocks{counts, offsets}},
                     [&](size_t, DataType t) {
                       return all_gather_v_async(in.data(), out.data(), counts, offsets, t,
                                                 options);
                     });
}

Status Communicator::reduce_scatter_v(InSpan in, OutSpan out, Counts counts, Counts offsets,
                                      ReduceOp op, const CallOptions& options) {
  return run_typed(*impl_, {C::kReduceScatterV, in, out, Blocks{counts, offsets}, Blocks{}},
                   [&](size_t, DataType t) {
                     return reduce_scatter_v(in.data(), out.data(), counts, offsets, t, op,
                                             options);
                   });
}
Work Communicator::reduce_scatter_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets,
                                          ReduceOp op, const CallOptions& options) {
  return start_typed(*impl_, {C::kReduceScatterV, in, out, Blocks{counts, offsets}, Blocks{}},
                     [&](size_t, DataType t) {
                       return reduce_scatter_v_async(in.data(), out.data(), counts, offsets, t, op,
                                                     options);
                     });
}

Status Communicator::gather_v(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                              const CallOptions& options) {
  return run_typed(*impl_, {C::kGatherV, in, out, Blocks{}, Blocks{counts, offsets}, root},
                   [&](size_t, DataType t) {
                     return gather_v(in.data(), out.data(), counts, offsets, t, root, options);
                   });
}
Work Communicator::gather_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                                  const CallOptions& options) {
  return start_typed(*impl_, {C::kGatherV, in, out, Blocks{}, Blocks{counts, offsets}, root},
                     [&](size_t, DataType t) {
                       return gather_v_async(in.data(), out.data(), counts, offsets, t, root,
                                             options);
                     });
}

Status Communicator::scatter_v(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                               const CallOptions& options) {
  return run_typed(*impl_, {C::kScatterV, in, out, Blocks{counts, offsets}, Blocks{}, root},
                   [&](size_t, DataType t) {
                     return scatter_v(in.data(), out.data(), counts, offsets, t, root, options);
                   });
}
Work Communicator::scatter_v_async(InSpan in, OutSpan out, Counts counts, Counts offsets, int root,
                                   const CallOptions& options) {
  return start_typed(*impl_, {C::kScatterV, in, out, Blocks{counts, offsets}, Blocks{}, root},
                     [&](size_t, DataType t) {
                       return scatter_v_async(in.data(), out.data(), counts, offsets, t, root,
                                              options);
                     });
}

Status Communicator::all_to_all_v(InSpan in, Counts in_counts, Counts in_offsets, OutSpan out,
                                  Counts out_counts, Counts out_offsets,
                                  const CallOptions& options) {
  return run_typed(
      *impl_,
      {C::kAllToAllV, in, out, Blocks{in_counts, in_offsets}, Blocks{out_counts, out_offsets}},
      [&](size_t, DataType t) {
        return all_to_all_v(in.data(), in_counts, in_offsets, out.data(), out_counts, out_offsets,
                            t, options);
      });
}
Work Communicator::all_to_all_v_async(InSpan in, Counts in_counts, Counts in_offsets, OutSpan out,
                                      Counts out_counts, Counts out_offsets,
                                      const CallOptions& options) {
  return start_typed(
      *impl_,
      {C::kAllToAllV, in, out, Blocks{in_counts, in_offsets}, Blocks{out_counts, out_offsets}},
      [&](size_t, DataType t) {
        return all_to_all_v_async(in.data(), in_counts, in_offsets, out.data(), out_counts,
                                  out_offsets, t, options);
      });
}

}  // namespace rondo
