/* rondo for C and for languages that call C. C99; a thin layer over communicator.hpp, whose
 * rules hold here too (threads, ownership of buffers, in place, errors).
 *
 * 1. A function that can fail returns a rondo_code; RONDO_OK is 0. rondo_last_error() explains
 *    the last failure of this thread. No exception leaves rondo.
 * 2. Handles are opaque and owned by the caller, who ends them with rondo_destroy or
 *    rondo_work_release. A null handle is an error; those two ignore it. A forked child's calls
 *    with its parent's handles return RONDO_INVALID_ARGUMENT.
 * 3. Values are 32-bit integers whose meaning never changes; new ones are appended. (These rules
 *    hold for the versions of one SONAME. Before 1.0 each minor version has its own.)
 * 4. Structs grow at their end. A struct that the caller fills begins with its size: initialise
 *    it with rondo_..._init(&it, sizeof it), then set fields. A struct that rondo fills is
 *    passed with its size. So programs compiled with an older header keep working, and a program
 *    compiled with a newer header is refused only if it sets a field that this library does not
 *    know.
 * 5. Strings are UTF-8 and end with a zero; rondo copies what it keeps. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default) /* librondo.so exports this part */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- values */

typedef int32_t rondo_code;
enum {
  RONDO_OK = 0,
  RONDO_INVALID_ARGUMENT = 1,   /* a value the caller passed; nothing has happened */
  RONDO_UNAVAILABLE = 2,        /* this build, machine or collective does not have it */
  RONDO_RESOURCE_EXHAUSTED = 3, /* memory, descriptors, address space */
  RONDO_MISMATCH = 4,           /* ranks disagree about the operation */
  RONDO_PEER_DIED = 5,          /* a rank ended or left during an operation */
  RONDO_TIMEOUT = 6,            /* nothing moved for the whole stall deadline */
  RONDO_ABORTED = 7,            /* rondo_abort */
  RONDO_SYSTEM = 8,             /* a system call failed */
  RONDO_BOOTSTRAP = 9,          /* ranks could not find or authenticate each other */
  RONDO_DATA_ERROR = 10         /* a file with invalid contents */
};

typedef int32_t rondo_data_type;
enum {
  RONDO_FLOAT32 = 0,
  RONDO_FLOAT64 = 1,
  RONDO_FLOAT16 = 2,
  RONDO_BFLOAT16 = 3,
  RONDO_INT32 = 4,
  RONDO_INT64 = 5,
  RONDO_UINT8 = 6,
  RONDO_INT8 = 7,
  RONDO_INT16 = 8,
  RONDO_UINT16 = 9,
  RONDO_UINT32 = 10,
  RONDO_UINT64 = 11,
  RONDO_BOOL = 12, /* one byte: any value but zero is true; results are 0 or 1 */
  RONDO_FLOAT8_E4M3 = 13,
  RONDO_FLOAT8_E5M2 = 14
};

/* Sums and products of integers wrap around, as in MPI and NCCL. An average of integers does not
 * wrap: it is the exact average, truncated towards zero. */
typedef int32_t rondo_reduce_op;
enum {
  RONDO_SUM = 0,
  RONDO_PROD = 1,
  RONDO_MIN = 2,
  RONDO_MAX = 3,
  RONDO_AVG = 4,
  RONDO_BAND = 5,
  RONDO_BOR = 6,
  RONDO_BXOR = 7,
  RONDO_MULSUM = 8 /* each rank's input times its own rondo_call_options.factor, then summed */
};

typedef int32_t rondo_collective; /* for rondo_get_plan */
enum {
  RONDO_ALL_REDUCE = 0,
  RONDO_REDUCE_SCATTER = 1,
  RONDO_ALL_GATHER = 2,
  RONDO_BROADCAST = 3,
  RONDO_BARRIER = 4,
  RONDO_REDUCE = 5,
  RONDO_GATHER = 6,
  RONDO_SCATTER = 7,
  RONDO_ALL_TO_ALL = 8,
  RONDO_ALL_GATHER_V = 9,
  RONDO_REDUCE_SCATTER_V = 10,
  RONDO_ALL_TO_ALL_V = 11,
  RONDO_GATHER_V = 12,
  RONDO_SCATTER_V = 13,
  RONDO_INCLUSIVE_SCAN = 14,
  RONDO_EXCLUSIVE_SCAN = 15
};

typedef int32_t rondo_algorithm;
enum {
  RONDO_AUTO = 0,
  RONDO_RING = 1,
  RONDO_ONE_SHOT = 2,
  RONDO_TWO_SHOT = 3,
  RONDO_ONE_SHOT_DIRECT = 4,
  RONDO_TWO_SHOT_DIRECT = 5,
  RONDO_FLAT = 6,
  RONDO_TREE = 7,
  RONDO_STAR = 8,
  RONDO_HIERARCHICAL = 9,
  RONDO_HIERARCHICAL_TREE = 10,
  RONDO_COPY_ENGINE = 11
};

typedef int32_t rondo_log_level;
enum {
  RONDO_LOG_DEBUG = 0,
  RONDO_LOG_INFO = 1,
  RONDO_LOG_WARN = 2,
  RONDO_LOG_ERROR = 3,
  RONDO_LOG_OFF = 4
};

/* ---- errors and versions */

/* The explanation of the last call of this thread that failed; "" before any has. Valid until
 * the next failure of a call of this thread. */
const char* rondo_last_error(void);
/* "ok", "invalid argument", ... */
const char* rondo_code_name(rondo_code code);
/* The version of this header and of its package; CMake reads it here. */
#define RONDO_VERSION "0.2.0"
/* The version of the loaded library: 10000 * major + 100 * minor + patch. */
int32_t rondo_version(void);

/* ---- creating communicators */

typedef struct rondo_communicator rondo_communicator;

/* An id that one communicator's ranks share, on any hosts; make it on rank 0's host, copy it as
 * bytes (MPI_Bcast, a file, a store), and keep it secret: a process of this user that knows it can
 * join. */
typedef struct rondo_unique_id {
  char text[128];
} rondo_unique_id;
rondo_code rondo_make_unique_id(rondo_unique_id* id);

/* Gathers `bytes` bytes from every rank into `all`, in rank order, by the caller's own means;
 * returns 0, or another value on failure. As MPI_Allgather(own, bytes, MPI_BYTE, all, bytes,
 * MPI_BYTE, ...). */
typedef int (*rondo_all_gather_function)(void* context, const void* own, size_t bytes, void* all);

/* How a communicator is created. Every rank passes the same values, except `rank`; if they
 * differ, rank 0's are used for everything that shapes the communication. A null string means an
 * empty one. */
typedef struct rondo_config {
  size_t size; /* of this struct */
  /* This rank and the number of ranks. Both -1 (the default): from the launcher's variables. */
  int32_t rank, world_size;
  /* Directory, or tcp://HOST:PORT, where the ranks meet; null: from the environment. */
  const char* rendezvous;
  /* Distinguishes communicators of one job; null: "world". */
  const char* name;
  /* A call fails when nothing has moved on any rank for this long; 0: RONDO_TIMEOUT (seconds),
   * else ten minutes. */
  int64_t stall_timeout_ms;
  /* How long rondo_create waits for the other ranks; 0: RONDO_BOOTSTRAP_TIMEOUT (seconds), else
   * one minute. */
  int64_t bootstrap_timeout_ms;
  /* Pipelines per operation (0: one; each takes a thread, and if threads exceed CPUs, small
   * operations take microseconds), slots per link, bytes per slot (0: from the link profile).
   * channels of a device: its thread blocks; 0: as many as leave room, up to max_channels. */
  int32_t channels, slots;
  size_t slot_bytes;
  /* "1GB/s,20us": delay every message to that bandwidth and latency; null: RONDO_PACE, else off. */
  const char* pace;
  /* Forces one algorithm for every operation that has it; RONDO_AUTO: RONDO_ALGORITHM, else the
   * link profile chooses. */
  rondo_algorithm algorithm;
  /* The most thread blocks of a device where channels is 0. 0: 16; 8 over several hosts, and where
   * GPUs cannot access each other. */
  int32_t max_channels;
  /* Two ways to meet without a launcher; one of them may be set, and rank and world_size then
   * must be. unique_id: the text of one rank's rondo_make_unique_id. all_gather: rondo_create
   * calls it once on every rank, with all_gather_context. */
  const char* unique_id;
  rondo_all_gather_function all_gather;
  void* all_gather_context;
  /* File of a link profile, or "built-in"; null: RONDO_LINKS, else this processor's calibrated
   * profile (~/.config/rondo), else built in. */
  const char* links;
  /* Not 0: reductions fold in rank order, so that their bits depend only on the inputs. 0: if
   * RONDO_REPRODUCIBLE is 1. */
  int32_t reproducible;
  int32_t reserved_too; /* 0 */
  /* The CUDA device whose memory holds this rank's buffers; -1 (the default): none.
   * communicator.hpp describes the differences. */
  int32_t device;
  int32_t reserved_last; /* 0 */
} rondo_config;

/* Writes the defaults of a struct of that size. */
void rondo_config_init(rondo_config* config, size_t size);

/* This process's rank, as its launcher (rondo-run, torchrun, Open MPI, MPICH, PALS, Slurm or PMIx) set it:
 * for decisions before rondo_create, such as the device. Without a launcher world_size is 0. The
 * local ones are among the ranks of this host. */
typedef struct rondo_place {
  int32_t rank, world_size;
  int32_t local_rank, local_world_size;
} rondo_place;
rondo_code rondo_place_from_launcher(rondo_place* place, size_t size);

/* Meets the other ranks. Blocks at most bootstrap_timeout_ms until all have come, and at most as
 * long again for each of the exchanges that follow. A null config means all defaults. On failure
 * *communicator is null; the error names a missing rank. Takes up to 128 KiB of stack. */
rondo_code rondo_create(rondo_communicator** communicator, const rondo_config* config);
/* Leaves the communicator without waiting for the peers. Waits for outstanding asynchronous
 * operations, unless one has failed. */
void rondo_destroy(rondo_communicator* communicator);

/* Creation in the background. rondo_pending_test says, without blocking, whether it has
 * finished. rondo_pending_wait blocks until it has, returns what rondo_create would have
 * returned, and ends the handle. */
typedef struct rondo_pending rondo_pending;
rondo_code rondo_create_async(rondo_pending** pending, const rondo_config* config);
rondo_code rondo_pending_test(const rondo_pending* pending, int* over);
rondo_code rondo_pending_wait(rondo_pending* pending, rondo_communicator** communicator);

/* Creates a communicator for each color, of the ranks that pass it, ordered by key, then by
 * rank; null for RONDO_NO_COLOR. Collective. The new ones have the settings of `communicator`. */
enum { RONDO_NO_COLOR = -1 };
rondo_code rondo_split(rondo_communicator* communicator, int32_t color, int32_t key,
                       rondo_communicator** part);
/* The same with a name ("rows"; null: none), which errors, logs and rondo-status show. */
rondo_code rondo_split_named(rondo_communicator* communicator, int32_t color, int32_t key,
                             const char* name, rondo_communicator** part);
/* Another communicator of the same ranks, with independent operations. Collective. */
rondo_code rondo_duplicate(rondo_communicator* communicator, rondo_communicator** same);

/* After a failure: a communicator of the ranks that are left, in their old order. Every rank that is
 * left calls it. Ranks that have not ended and do not come within patience_ms (0:
 * bootstrap_timeout_ms) are left out by a majority of the others; see Communicator::shrink() in
 * communicator.hpp. `communicator` stays as it is, for rondo_destroy. */
rondo_code rondo_shrink(rondo_communicator* communicator, int64_t patience_ms,
                        rondo_communicator** left);
/* The rank that `rank` of a communicator from rondo_shrink had before. -1: no such rank, or another
 * communicator. */
int rondo_former_rank(const rondo_communicator* communicator, int rank);

/* -1 for a null communicator. */
int rondo_rank(const rondo_communicator* communicator);
int rondo_size(const rondo_communicator* communicator);
/* The host of `rank`; hosts are numbered from 0 in the order of their lowest ranks. -1: no such rank, or
 * a null communicator. The ranks of this host: rondo_split() with rondo_host() of one's own rank as
 * the color, as MPI_Comm_split_type does. */
int rondo_host(const rondo_communicator* communicator, int rank);

/* ---- collectives */

/* Settings that one call may override; a null pointer to them means all defaults. */
typedef struct rondo_call_options {
  size_t size;               /* of this struct */
  rondo_algorithm algorithm; /* RONDO_AUTO: the communicator's choice */
  int32_t reserved;          /* 0 */
  int64_t stall_timeout_ms;  /* 0: the communicator's */
  /* RONDO_MULSUM only: factor of this rank's input. RONDO_INVALID_ARGUMENT if the type cannot hold
   * it: 0.5 or 300 for int8, 1e39 for float. */
  double factor;
  void* stream; /* with a device: the cudaStream_t on which the operation is enqueued */
  /* A tensor's dimensions from the slowest to the fastest, a hexadecimal digit each, counted from 1:
   * 0x1342 is channels-last, 0 is C order. Ranks that pass different ones get RONDO_MISMATCH. */
  uint64_t layout;
} rondo_call_options;
/* Writes the defaults of a struct of that size. */
void rondo_call_options_init(rondo_call_options* options, size_t size);

/* out[i] = op over all ranks of in[i], for `count` elements; out is the same bits on every rank. */
rondo_code rondo_all_reduce(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, rondo_reduce_op op,
                            const rondo_call_options* options);
/* in: size blocks of `count`; out: the reduction of block `rank` of every rank. */
rondo_code rondo_reduce_scatter(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options);
/* in: `count` elements; out: size blocks of `count`; block r is rank r's in. */
rondo_code rondo_all_gather(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options);
/* out on every rank = in of `root`; elsewhere in is ignored and may be null. */
rondo_code rondo_broadcast(rondo_communicator* communicator, const void* in, void* out,
                           size_t count, rondo_data_type type, int32_t root,
                           const rondo_call_options* options);
/* out on `root` = op over all ranks of in; elsewhere out is ignored and may be null. */
rondo_code rondo_reduce(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, rondo_reduce_op op, int32_t root,
                        const rondo_call_options* options);
/* in: `count` elements; out on `root`: size blocks of `count`; block r is rank r's in. out is
 * ignored elsewhere. */
rondo_code rondo_gather(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, int32_t root, const rondo_call_options* options);
/* in on `root`: size blocks of `count`, ignored elsewhere; out: block `rank` of it. */
rondo_code rondo_scatter(rondo_communicator* communicator, const void* in, void* out, size_t count,
                         rondo_data_type type, int32_t root, const rondo_call_options* options);
/* in, out: size blocks of `count`; block r of out is block `rank` of rank r's in. */
rondo_code rondo_all_to_all(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options);
/* rondo_all_gather with blocks of different sizes: `size` counts, the same on every rank. out
 * holds counts[r] elements of rank r from element offsets[r] on; null offsets: blocks follow
 * each other. */
rondo_code rondo_all_gather_v(rondo_communicator* communicator, const void* in, void* out,
                              const size_t* counts, const size_t* offsets, rondo_data_type type,
                              const rondo_call_options* options);
/* rondo_reduce_scatter likewise: in holds counts[r] elements for rank r. */
rondo_code rondo_reduce_scatter_v(rondo_communicator* communicator, const void* in, void* out,
                                  const size_t* counts, const size_t* offsets, rondo_data_type type,
                                  rondo_reduce_op op, const rondo_call_options* options);
/* rondo_all_to_all likewise: each rank passes its own counts; sender and receiver must agree. */
rondo_code rondo_all_to_all_v(rondo_communicator* communicator, const void* in,
                              const size_t* in_counts, const size_t* in_offsets, void* out,
                              const size_t* out_counts, const size_t* out_offsets,
                              rondo_data_type type, const rondo_call_options* options);
/* rondo_gather likewise, on `root`: counts and offsets are the same on every rank (in MPI only
 * the root passes them). */
rondo_code rondo_gather_v(rondo_communicator* communicator, const void* in, void* out,
                          const size_t* counts, const size_t* offsets, rondo_data_type type,
                          int32_t root, const rondo_call_options* options);
/* rondo_scatter likewise: in on `root` holds counts[r] elements for rank r. */
rondo_code rondo_scatter_v(rondo_communicator* communicator, const void* in, void* out,
                           const size_t* counts, const size_t* offsets, rondo_data_type type,
                           int32_t root, const rondo_call_options* options);
/* out[i] = op over in[i] of ranks 0 to `rank`, in this order; no average. */
rondo_code rondo_inclusive_scan(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options);
/* The same of ranks 0 to `rank` - 1; on rank 0 the operator's identity (a sum's is 0). */
rondo_code rondo_exclusive_scan(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options);
/* Returns when every rank has called it. */
rondo_code rondo_barrier(rondo_communicator* communicator, const rondo_call_options* options);

/* ---- messages between two ranks, and groups */

/* Messages with tag 0. The count of a recv is the room in its buffer: a shorter message fills its
 * front, a longer one is RONDO_MISMATCH. The types must be equal. communicator.hpp says when a send
 * returns. */
rondo_code rondo_send(rondo_communicator* communicator, const void* buffer, size_t count,
                      rondo_data_type type, int32_t peer, const rondo_call_options* options);
rondo_code rondo_recv(rondo_communicator* communicator, void* buffer, size_t count,
                      rondo_data_type type, int32_t peer, const rondo_call_options* options);

/* The same with tags, 0 to RONDO_MAX_TAG. A recv gets the earliest message from `peer`, or any rank,
 * with `tag`, or any, that no earlier recv gets. communicator.hpp says what may wait for what. */
enum { RONDO_ANY_SOURCE = -2, RONDO_ANY_TAG = -1, RONDO_MAX_TAG = 32767 };
/* What a message is, as its receiver learns it. */
typedef struct rondo_envelope {
  int32_t source, tag; /* source -1: there is no message */
  size_t count;
  rondo_data_type type;
  int32_t reserved; /* 0 */
} rondo_envelope;
rondo_code rondo_send_tagged(rondo_communicator* communicator, const void* buffer, size_t count,
                             rondo_data_type type, int32_t peer, int32_t tag,
                             const rondo_call_options* options);
/* `envelope`: null, or a struct of `size` bytes, which is written when the recv ends (in a group: by
 * rondo_group_end). */
rondo_code rondo_recv_tagged(rondo_communicator* communicator, void* buffer, size_t count,
                             rondo_data_type type, int32_t peer, int32_t tag,
                             rondo_envelope* envelope, size_t size,
                             const rondo_call_options* options);
/* Blocks until there is a message that such a recv would get, and says what it is; the message
 * stays. rondo_try_probe does not block: *found is 1 if there is one, else 0. Not in a group. */
rondo_code rondo_probe(rondo_communicator* communicator, int32_t peer, int32_t tag,
                       rondo_envelope* envelope, size_t size, const rondo_call_options* options);
rondo_code rondo_try_probe(rondo_communicator* communicator, int32_t peer, int32_t tag, int* found,
                           rondo_envelope* envelope, size_t size);

/* Calls between rondo_group_start and rondo_group_end are collected. rondo_group_end runs them:
 * all messages at once and beside the collectives, collectives in order. A nested group is part
 * of the outermost one and runs with it. */
rondo_code rondo_group_start(rondo_communicator* communicator);
rondo_code rondo_group_end(rondo_communicator* communicator);
/* Instead of rondo_group_end: nothing of the group runs, nor of one around it. Its works, and the end
 * of the outermost group, return RONDO_INVALID_ARGUMENT with this reason. */
rondo_code rondo_group_abandon(rondo_communicator* communicator, const char* reason);

/* ---- asynchronous operations */

/* A pending operation. Any thread may use it at any time; releasing it is the last use. */
typedef struct rondo_work rondo_work;

/* Asynchronous forms: they return at once, and rondo's progress thread executes the operations
 * in issue order. A call with wrong arguments fails, and *work is null. With a null `work` there
 * is no handle; the operation continues as after rondo_work_release. */
rondo_code rondo_all_reduce_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type, rondo_reduce_op op,
                                  const rondo_call_options* options, rondo_work** work);
rondo_code rondo_reduce_scatter_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work);
rondo_code rondo_all_gather_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type,
                                  const rondo_call_options* options, rondo_work** work);
rondo_code rondo_broadcast_async(rondo_communicator* communicator, const void* in, void* out,
                                 size_t count, rondo_data_type type, int32_t root,
                                 const rondo_call_options* options, rondo_work** work);
rondo_code rondo_reduce_async(rondo_communicator* communicator, const void* in, void* out,
                              size_t count, rondo_data_type type, rondo_reduce_op op, int32_t root,
                              const rondo_call_options* options, rondo_work** work);
rondo_code rondo_gather_async(rondo_communicator* communicator, const void* in, void* out,
                              size_t count, rondo_data_type type, int32_t root,
                              const rondo_call_options* options, rondo_work** work);
rondo_code rondo_scatter_async(rondo_communicator* communicator, const void* in, void* out,
                               size_t count, rondo_data_type type, int32_t root,
                               const rondo_call_options* options, rondo_work** work);
rondo_code rondo_all_to_all_async(rondo_communicator* communicator, const void* in, void* out,
                                  size_t count, rondo_data_type type,
                                  const rondo_call_options* options, rondo_work** work);
rondo_code rondo_all_gather_v_async(rondo_communicator* communicator, const void* in, void* out,
                                    const size_t* counts, const size_t* offsets,
                                    rondo_data_type type, const rondo_call_options* options,
                                    rondo_work** work);
rondo_code rondo_reduce_scatter_v_async(rondo_communicator* communicator, const void* in, void* out,
                                        const size_t* counts, const size_t* offsets,
                                        rondo_data_type type, rondo_reduce_op op,
                                        const rondo_call_options* options, rondo_work** work);
rondo_code rondo_all_to_all_v_async(rondo_communicator* communicator, const void* in,
                                    const size_t* in_counts, const size_t* in_offsets, void* out,
                                    const size_t* out_counts, const size_t* out_offsets,
                                    rondo_data_type type, const rondo_call_options* options,
                                    rondo_work** work);
rondo_code rondo_gather_v_async(rondo_communicator* communicator, const void* in, void* out,
                                const size_t* counts, const size_t* offsets, rondo_data_type type,
                                int32_t root, const rondo_call_options* options, rondo_work** work);
rondo_code rondo_scatter_v_async(rondo_communicator* communicator, const void* in, void* out,
                                 const size_t* counts, const size_t* offsets, rondo_data_type type,
                                 int32_t root, const rondo_call_options* options,
                                 rondo_work** work);
rondo_code rondo_inclusive_scan_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work);
rondo_code rondo_exclusive_scan_async(rondo_communicator* communicator, const void* in, void* out,
                                      size_t count, rondo_data_type type, rondo_reduce_op op,
                                      const rondo_call_options* options, rondo_work** work);
rondo_code rondo_send_async(rondo_communicator* communicator, const void* buffer, size_t count,
                            rondo_data_type type, int32_t peer, const rondo_call_options* options,
                            rondo_work** work);
rondo_code rondo_recv_async(rondo_communicator* communicator, void* buffer, size_t count,
                            rondo_data_type type, int32_t peer, const rondo_call_options* options,
                            rondo_work** work);
rondo_code rondo_send_tagged_async(rondo_communicator* communicator, const void* buffer,
                                   size_t count, rondo_data_type type, int32_t peer, int32_t tag,
                                   const rondo_call_options* options, rondo_work** work);
/* rondo_get_work_envelope says what it received. */
rondo_code rondo_recv_tagged_async(rondo_communicator* communicator, void* buffer, size_t count,
                                   rondo_data_type type, int32_t peer, int32_t tag,
                                   const rondo_call_options* options, rondo_work** work);
rondo_code rondo_barrier_async(rondo_communicator* communicator, const rondo_call_options* options,
                               rondo_work** work);

/* Blocks until the operation has ended; returns its result. May be called more than once.
 * RONDO_INVALID_ARGUMENT at once while the operation's group is open: rondo_group_end begins it. */
rondo_code rondo_work_wait(rondo_work* work);
/* While a call of the calling thread blocks, rondo calls callback(context) about every 50 ms from
 * that thread; null ends that. See set_wait_callback() in log.hpp. */
void rondo_set_wait_callback(void (*callback)(void* context), void* context);
/* rondo_work_wait of each of `count` works; returns the first failure in their order. Null ones are
 * left out. */
rondo_code rondo_work_wait_all(rondo_work* const* works, size_t count);
/* Blocks until one has ended, well or badly, sets *index to it (the lowest, if there are more) and
 * returns its result. Null ones are left out: put null in its place before the next call. All null:
 * RONDO_OK, and *index is count. If none has ended and one's group is open: that one, and
 * RONDO_INVALID_ARGUMENT. */
rondo_code rondo_work_wait_any(rondo_work* const* works, size_t count, size_t* index);
/* Sets *ended to 1 if it has ended, else to 0; never blocks. */
rondo_code rondo_work_test(const rondo_work* work, int* ended);
/* RONDO_OK while it runs, then its result. */
rondo_code rondo_work_status(const rondo_work* work);
/* Times of issue, of the first byte that could move, and of the end: CLOCK_MONOTONIC
 * nanoseconds, 0: not yet. */
typedef struct rondo_work_times {
  int64_t issued_ns, started_ns, ended_ns;
} rondo_work_times;
rondo_code rondo_get_work_times(const rondo_work* work, rondo_work_times* times, size_t size);
/* Of a recv that has ended well: what it received. Otherwise its source is -1. */
rondo_code rondo_get_work_envelope(const rondo_work* work, rondo_envelope* envelope, size_t size);
/* Releases the handle; the operation continues. */
void rondo_work_release(rondo_work* work);

/* ---- the state of a communicator */

/* Waits until every asynchronous operation of this communicator has ended, well or badly, as
 * rondo_destroy does: here rondo_abort can end the wait. Returns the communicator's first failure,
 * or RONDO_MISMATCH if ranks that only sent have made different calls (rondo_destroy logs it). Not in
 * a group; a device's streams are not waited for. */
rondo_code rondo_finish(rondo_communicator* communicator);

/* Makes every pending and later call, on every rank, return RONDO_ABORTED with this reason. Any
 * thread may call it. */
rondo_code rondo_abort(rondo_communicator* communicator, const char* reason);
/* The communicator's first failure, or RONDO_OK. With a device it checks for one first: call it
 * in a loop that waits for a stream. Any thread may call it. */
rondo_code rondo_status(const rondo_communicator* communicator);

/* How one operation would be done, and its predicted time. */
typedef struct rondo_plan {
  rondo_algorithm algorithm;
  int32_t channels;
  double predicted_us;
  uint64_t bytes_sent_per_rank; /* largest over the ranks */
} rondo_plan;
/* `op`: for collectives that reduce. `direct`: with library memory on every rank, otherwise
 * plain. Fails as the call itself would. */
rondo_code rondo_get_plan(const rondo_communicator* communicator, rondo_collective collective,
                          size_t count, rondo_data_type type, rondo_reduce_op op, int direct,
                          rondo_algorithm algorithm, rondo_plan* plan, size_t size);

/* Counters since creation, of this rank. */
typedef struct rondo_stats {
  uint64_t operations;
  uint64_t bytes_sent;   /* payload that this rank moved between itself and others */
  uint64_t shared_bytes; /* shared memory of the whole communicator */
} rondo_stats;
rondo_code rondo_get_stats(const rondo_communicator* communicator, rondo_stats* stats, size_t size);

/* The last operations of every rank and its pending messages, as text. Writes at most `capacity`
 * bytes, including a final zero; *needed, unless null, receives the size of the whole text with
 * its zero. `buffer` may be null when capacity is 0. */
rondo_code rondo_flight_record(const rondo_communicator* communicator, char* buffer,
                               size_t capacity, size_t* needed);

/* ---- library memory */

/* `bytes` of zeroed memory, aligned to 64 bytes, which the ranks of this host access in place,
 * so that collectives need no staging. Null when none is left: then use any other memory. */
void* rondo_alloc(size_t bytes);
/* Null is allowed. No collective may still use it. */
void rondo_free(void* pointer);
/* Turns the pages that hold [pointer, pointer + bytes) into library memory at their address, with
 * their content: see rondo::register_memory in memory.hpp. No thread may write to them meanwhile. */
rondo_code rondo_register_memory(void* pointer, size_t bytes);
/* Makes them private memory again; before the memory is freed. `pointer` as it was registered. */
rondo_code rondo_unregister_memory(void* pointer);
/* 1 if [pointer, pointer + bytes) lies in library memory of this process, else 0. */
int rondo_is_library_memory(const void* pointer, size_t bytes);

/* ---- memory of a CUDA device */

/* Memory of that device, aligned to 256 bytes and not cleared, as cudaMalloc gives it. */
rondo_code rondo_device_alloc(size_t bytes, int32_t device, void** pointer);
/* Null is allowed. No operation may still use it, and no rank map it. RONDO_INVALID_ARGUMENT where
 * part of it is still registered in this process. */
rondo_code rondo_device_free(void* pointer);
/* Registers this rank's device memory with the other ranks of a communicator on devices, so that
 * their kernels access it in place also between processes. Every rank calls it, and gets the error
 * of any of them; the communicator goes on. See Communicator::register_device_memory in communicator.hpp. */
rondo_code rondo_register_device_memory(rondo_communicator* communicator, void* pointer,
                                        size_t bytes);
/* Ends that; `pointer` as it was registered. Every rank calls it at the same place among its calls.
 * communicator.hpp says when the memory may then be freed. */
rondo_code rondo_unregister_device_memory(rondo_communicator* communicator, void* pointer);

/* ---- messages */

/* Called on any thread that runs rondo's code, one call at a time. Must not call rondo. */
typedef void (*rondo_log_callback)(void* context, rondo_log_level level, const char* message);
/* Redirects rondo's own messages; a null callback restores stderr. */
rondo_code rondo_set_log_callback(rondo_log_callback callback, void* context);
/* Messages below this level are dropped. */
rondo_code rondo_set_log_level(rondo_log_level level);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
