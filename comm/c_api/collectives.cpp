// The collectives of rondo.h, blocking and asynchronous: each makes a Call.
#include "comm/c_api/shim.hpp"

using rondo::c_api::run;
using rondo::c_api::start;
using C = rondo::Collective;

rondo_code rondo_all_reduce(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, rondo_reduce_op op,
                            const rondo_call_options* options) {
  return run({communicator, options, type, op},
             {.collective = C::kAllReduce, .in = in, .out = out, .count = count});
}

rondo_code rondo_reduce_scatter(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options) {
  return run({communicator, options, type, op},
             {.collective = C::kReduceScatter, .in = in, .out = out, .count = count});
}

rondo_code rondo_all_gather(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options) {
  return run({communicator, options, type},
             {.collective = C::kAllGather, .in = in, .out = out, .count = count});
}

rondo_code rondo_broadcast(rondo_communicator* communicator, const void* in, void* out,
                           size_t count, rondo_data_type type, int32_t root,
                           const rondo_call_options* options) {
  return run({communicator, options, type},
             {.collective = C::kBroadcast, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_reduce(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, rondo_reduce_op op, int32_t root,
                        const rondo_call_options* options) {
  return run({communicator, options, type, op},
             {.collective = C::kReduce, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_gather(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type},
             {.collective = C::kGather, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_scatter(rondo_communicator* communicator, const void* in, void* out, size_t count,
                         rondo_data_type type, int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type},
             {.collective = C::kScatter, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_all_to_all(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options) {
  return run({communicator, options, type},
             {.collective = C::kAllToAll, .in = in, .out = out, .count = count});
}

rondo_code rondo_barrier(rondo_communicator* communicator, const rondo_call_options* options) {
  return run({communicator, options}, {.collective = C::kBarrier});
}

rondo_code rondo_all_gather_v(rondo_communicator* communicator, const void* in, void* out,
                              const size_t* counts, const size_t* offsets, rondo_data_type type,
                              const rondo_call_options* options) {
  return run({communicator, options, type}, {.collective = C::kAllGatherV, .in = in, .out = out},
             {.out_counts = counts, .out_offsets = offsets});
}

rondo_code rondo_reduce_scatter_v(rondo_communicator* communicator, const void* in, void* out,
                                  const size_t* counts, const size_t* offsets, rondo_data_type type,
                                  rondo_reduce_op op, const rondo_call_options* options) {
  return run({communicator, options, type, op},
             {.collective = C::kReduceScatterV, .in = in, .out = out},
             {.in_counts = counts, .in_offsets = offsets});
}

rondo_code rondo_all_to_all_v(rondo_communicator* communicator, const void* in,
                              const size_t* in_counts, const size_t* in_offsets, void* out,
                              const size_t* out_counts, const size_t* out_offsets,
                              rondo_data_type type, const rondo_call_options* options) {
  return run({communicator, options, type}, {.collective = C::kAllToAllV, .in = in, .out = out},
             {in_counts, in_offsets, out_counts, out_offsets});
}

rondo_code rondo_gather_v(rondo_communicator* communicator, const void* in, void* out,
                          const size_t* counts, const size_t* offsets, rondo_data_type type,
                          int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type},
             {.collective = C::kGatherV, .in = in, .out = out, .root = root},
             {.out_counts = counts, .out_offsets = offsets});
}

rondo_code rondo_scatter_v(rondo_communicator* communicator, const void* in, void* out,
                           const size_t* counts, const size_t* offsets, rondo_data_type type,
                           int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type},
             {.collective = C::kScatterV, .in = in, .out = out, .root = root},
             {.in_counts = counts, .in_offsets = offsets});
}

rondo_code rondo_inclusive_scan(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options) {
  return run({communicator, options, type, op},
             {.collective = C::kInclusiveScan, .in = in, .out = out, .count = count});
}

rondo_code rondo_exclusive_scan(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options) {
  return run({communicator, options, type, op},
             {.collective = C::kExclusiveScan, .in = in, .out = out, .count = count});
}

// ---- asynchronous operations

rondo_code rondo_all_reduce_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type, rondo_reduce_op op,
                                  const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work,
               {.collective = C::kAllReduce, .in = in, .out = out, .count = count});
}

rondo_code rondo_reduce_scatter_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work,
               {.collective = C::kReduceScatter, .in = in, .out = out, .count = count});
}

rondo_code rondo_all_gather_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type,
                                  const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kAllGather, .in = in, .out = out, .count = count});
}

rondo_code rondo_broadcast_async(rondo_communicator* communicator, const void* in, void* out,
                                 size_t count, rondo_data_type type, int32_t root,
                                 const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kBroadcast, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_reduce_async(rondo_communicator* communicator, const void* in, void* out,
                              size_t count, rondo_data_type type, rondo_reduce_op op, int32_t root,
                              const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work,
               {.collective = C::kReduce, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_gather_async(rondo_communicator* communicator, const void* in, void* out,
                              size_t count, rondo_data_type type, int32_t root,
                              const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kGather, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_scatter_async(rondo_communicator* communicator, const void* in, void* out,
                               size_t count, rondo_data_type type, int32_t root,
                               const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kScatter, .in = in, .out = out, .count = count, .root = root});
}

rondo_code rondo_all_to_all_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type,
                                  const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kAllToAll, .in = in, .out = out, .count = count});
}

rondo_code rondo_barrier_async(rondo_communicator* communicator, const rondo_call_options* options,
                               rondo_work** work) {
  return start({communicator, options}, work, {.collective = C::kBarrier});
}

rondo_code rondo_all_gather_v_async(rondo_communicator* communicator, const void* in, void* out,
                                    const size_t* counts, const size_t* offsets,
                                    rondo_data_type type, const rondo_call_options* options,
                                    rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kAllGatherV, .in = in, .out = out},
               {.out_counts = counts, .out_offsets = offsets});
}

rondo_code rondo_reduce_scatter_v_async(rondo_communicator* communicator, const void* in, void* out,
                                        const size_t* counts, const size_t* offsets,
                                        rondo_data_type type, rondo_reduce_op op,
                                        const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work,
               {.collective = C::kReduceScatterV, .in = in, .out = out},
               {.in_counts = counts, .in_offsets = offsets});
}

rondo_code rondo_all_to_all_v_async(rondo_communicator* communicator, const void* in,
                                    const size_t* in_counts, const size_t* in_offsets, void* out,
                                    const size_t* out_counts, const size_t* out_offsets,
                                    rondo_data_type type, const rondo_call_options* options,
                                    rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kAllToAllV, .in = in, .out = out},
               {in_counts, in_offsets, out_counts, out_offsets});
}

rondo_code rondo_gather_v_async(rondo_communicator* communicator, const void* in, void* out,
                                const size_t* counts, const size_t* offsets, rondo_data_type type,
                                int32_t root, const rondo_call_options* options,
                                rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kGatherV, .in = in, .out = out, .root = root},
               {.out_counts = counts, .out_offsets = offsets});
}

rondo_code rondo_scatter_v_async(rondo_communicator* communicator, const void* in, void* out,
                                 const size_t* counts, const size_t* offsets, rondo_data_type type,
                                 int32_t root, const rondo_call_options* options,
                                 rondo_work** work) {
  return start({communicator, options, type}, work,
               {.collective = C::kScatterV, .in = in, .out = out, .root = root},
               {.in_counts = counts, .in_offsets = offsets});
}

rondo_code rondo_inclusive_scan_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work,
               {.collective = C::kInclusiveScan, .in = in, .out = out, .count = count});
}

rondo_code rondo_exclusive_scan_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work,
               {.collective = C::kExclusiveScan, .in = in, .out = out, .count = count});
}
