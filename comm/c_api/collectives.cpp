// The collectives of rondo.h, blocking and asynchronous. A new one is two more functions of one
// statement each.
#include "comm/c_api/shim.hpp"

using rondo::Communicator;
using rondo::c_api::Arguments;
using rondo::c_api::for_each_rank;
using rondo::c_api::run;
using rondo::c_api::start;

rondo_code rondo_all_reduce(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, rondo_reduce_op op,
                            const rondo_call_options* options) {
  return run({communicator, options, type, op}, [&](Communicator& c, const Arguments& a) {
    return c.all_reduce(in, out, count, a.type, a.op, a.options);
  });
}

rondo_code rondo_reduce_scatter(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options) {
  return run({communicator, options, type, op}, [&](Communicator& c, const Arguments& a) {
    return c.reduce_scatter(in, out, count, a.type, a.op, a.options);
  });
}

rondo_code rondo_all_gather(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.all_gather(in, out, count, a.type, a.options);
  });
}

rondo_code rondo_broadcast(rondo_communicator* communicator, const void* in, void* out,
                           size_t count, rondo_data_type type, int32_t root,
                           const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.broadcast(in, out, count, a.type, root, a.options);
  });
}

rondo_code rondo_reduce(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, rondo_reduce_op op, int32_t root,
                        const rondo_call_options* options) {
  return run({communicator, options, type, op}, [&](Communicator& c, const Arguments& a) {
    return c.reduce(in, out, count, a.type, a.op, root, a.options);
  });
}

rondo_code rondo_gather(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.gather(in, out, count, a.type, root, a.options);
  });
}

rondo_code rondo_scatter(rondo_communicator* communicator, const void* in, void* out, size_t count,
                         rondo_data_type type, int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.scatter(in, out, count, a.type, root, a.options);
  });
}

rondo_code rondo_all_to_all(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.all_to_all(in, out, count, a.type, a.options);
  });
}

rondo_code rondo_barrier(rondo_communicator* communicator, const rondo_call_options* options) {
  return run({communicator, options},
             [&](Communicator& c, const Arguments& a) { return c.barrier(a.options); });
}

rondo_code rondo_all_gather_v(rondo_communicator* communicator, const void* in, void* out,
                              const size_t* counts, const size_t* offsets, rondo_data_type type,
                              const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.all_gather_v(in, out, for_each_rank(counts, c), for_each_rank(offsets, c), a.type,
                          a.options);
  });
}

rondo_code rondo_reduce_scatter_v(rondo_communicator* communicator, const void* in, void* out,
                                  const size_t* counts, const size_t* offsets, rondo_data_type type,
                                  rondo_reduce_op op, const rondo_call_options* options) {
  return run({communicator, options, type, op}, [&](Communicator& c, const Arguments& a) {
    return c.reduce_scatter_v(in, out, for_each_rank(counts, c), for_each_rank(offsets, c), a.type,
                              a.op, a.options);
  });
}

rondo_code rondo_all_to_all_v(rondo_communicator* communicator, const void* in,
                              const size_t* in_counts, const size_t* in_offsets, void* out,
                              const size_t* out_counts, const size_t* out_offsets,
                              rondo_data_type type, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.all_to_all_v(in, for_each_rank(in_counts, c), for_each_rank(in_offsets, c), out,
                          for_each_rank(out_counts, c), for_each_rank(out_offsets, c), a.type,
                          a.options);
  });
}

rondo_code rondo_gather_v(rondo_communicator* communicator, const void* in, void* out,
                          const size_t* counts, const size_t* offsets, rondo_data_type type,
                          int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.gather_v(in, out, for_each_rank(counts, c), for_each_rank(offsets, c), a.type, root,
                      a.options);
  });
}

rondo_code rondo_scatter_v(rondo_communicator* communicator, const void* in, void* out,
                           const size_t* counts, const size_t* offsets, rondo_data_type type,
                           int32_t root, const rondo_call_options* options) {
  return run({communicator, options, type}, [&](Communicator& c, const Arguments& a) {
    return c.scatter_v(in, out, for_each_rank(counts, c), for_each_rank(offsets, c), a.type, root,
                       a.options);
  });
}

rondo_code rondo_inclusive_scan(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options) {
  return run({communicator, options, type, op}, [&](Communicator& c, const Arguments& a) {
    return c.inclusive_scan(in, out, count, a.type, a.op, a.options);
  });
}

rondo_code rondo_exclusive_scan(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options) {
  return run({communicator, options, type, op}, [&](Communicator& c, const Arguments& a) {
    return c.exclusive_scan(in, out, count, a.type, a.op, a.options);
  });
}

// ---- asynchronous operations

rondo_code rondo_all_reduce_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type, rondo_reduce_op op,
                                  const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work, [&](Communicator& c, const Arguments& a) {
    return c.all_reduce_async(in, out, count, a.type, a.op, a.options);
  });
}

rondo_code rondo_reduce_scatter_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work, [&](Communicator& c, const Arguments& a) {
    return c.reduce_scatter_async(in, out, count, a.type, a.op, a.options);
  });
}

rondo_code rondo_all_gather_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type,
                                  const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.all_gather_async(in, out, count, a.type, a.options);
  });
}

rondo_code rondo_broadcast_async(rondo_communicator* communicator, const void* in, void* out,
                                 size_t count, rondo_data_type type, int32_t root,
                                 const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.broadcast_async(in, out, count, a.type, root, a.options);
  });
}

rondo_code rondo_reduce_async(rondo_communicator* communicator, const void* in, void* out,
                              size_t count, rondo_data_type type, rondo_reduce_op op, int32_t root,
                              const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work, [&](Communicator& c, const Arguments& a) {
    return c.reduce_async(in, out, count, a.type, a.op, root, a.options);
  });
}

rondo_code rondo_gather_async(rondo_communicator* communicator, const void* in, void* out,
                              size_t count, rondo_data_type type, int32_t root,
                              const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.gather_async(in, out, count, a.type, root, a.options);
  });
}

rondo_code rondo_scatter_async(rondo_communicator* communicator, const void* in, void* out,
                               size_t count, rondo_data_type type, int32_t root,
                               const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.scatter_async(in, out, count, a.type, root, a.options);
  });
}

rondo_code rondo_all_to_all_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type,
                                  const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.all_to_all_async(in, out, count, a.type, a.options);
  });
}

rondo_code rondo_barrier_async(rondo_communicator* communicator, const rondo_call_options* options,
                               rondo_work** work) {
  return start({communicator, options}, work,
               [&](Communicator& c, const Arguments& a) { return c.barrier_async(a.options); });
}

rondo_code rondo_all_gather_v_async(rondo_communicator* communicator, const void* in, void* out,
                                    const size_t* counts, const size_t* offsets,
                                    rondo_data_type type, const rondo_call_options* options,
                                    rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.all_gather_v_async(in, out, for_each_rank(counts, c), for_each_rank(offsets, c),
                                a.type, a.options);
  });
}

rondo_code rondo_reduce_scatter_v_async(rondo_communicator* communicator, const void* in, void* out,
                                        const size_t* counts, const size_t* offsets,
                                        rondo_data_type type, rondo_reduce_op op,
                                        const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work, [&](Communicator& c, const Arguments& a) {
    return c.reduce_scatter_v_async(in, out, for_each_rank(counts, c), for_each_rank(offsets, c),
                                    a.type, a.op, a.options);
  });
}

rondo_code rondo_all_to_all_v_async(rondo_communicator* communicator, const void* in,
                                    const size_t* in_counts, const size_t* in_offsets, void* out,
                                    const size_t* out_counts, const size_t* out_offsets,
                                    rondo_data_type type, const rondo_call_options* options,
                                    rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.all_to_all_v_async(in, for_each_rank(in_counts, c), for_each_rank(in_offsets, c), out,
                                for_each_rank(out_counts, c), for_each_rank(out_offsets, c), a.type,
                                a.options);
  });
}

rondo_code rondo_gather_v_async(rondo_communicator* communicator, const void* in, void* out,
                                const size_t* counts, const size_t* offsets, rondo_data_type type,
                                int32_t root, const rondo_call_options* options,
                                rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.gather_v_async(in, out, for_each_rank(counts, c), for_each_rank(offsets, c), a.type,
                            root, a.options);
  });
}

rondo_code rondo_scatter_v_async(rondo_communicator* communicator, const void* in, void* out,
                                 const size_t* counts, const size_t* offsets, rondo_data_type type,
                                 int32_t root, const rondo_call_options* options,
                                 rondo_work** work) {
  return start({communicator, options, type}, work, [&](Communicator& c, const Arguments& a) {
    return c.scatter_v_async(in, out, for_each_rank(counts, c), for_each_rank(offsets, c), a.type,
                             root, a.options);
  });
}

rondo_code rondo_inclusive_scan_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work, [&](Communicator& c, const Arguments& a) {
    return c.inclusive_scan_async(in, out, count, a.type, a.op, a.options);
  });
}

rondo_code rondo_exclusive_scan_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work) {
  return start({communicator, options, type, op}, work, [&](Communicator& c, const Arguments& a) {
    return c.exclusive_scan_async(in, out, count, a.type, a.op, a.options);
  });
}
