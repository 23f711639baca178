/* rondo for C, and for whatever calls C. C99; a thin layer over communicator.hpp, whose rules hold
 * here too (which thread may call what, whose the buffers are, what is in place, how failures
 * stick).
 *
 * 1. What can fail returns a rondo_code, RONDO_OK being 0; rondo_last_error() says in words why the
 *    last call of this thread that failed did. No exception leaves rondo.
 * 2. Handles are opaque and belong to the caller: rondo_destroy, rondo_work_release. A null handle
 *    is an error, or nothing to do for those two. A forked child uses none of its parent's.
 * 3. Values are 32-bit integers that never change their meaning; new ones are added behind the
 *    last.
 * 4. Structs grow at their end. Those that the caller fills begin with their size: initialise them
 *    with rondo_..._init(&it, sizeof it), then set what should differ. Those that rondo fills come
 *    with their size. So programs compiled with an older header go on working, and one compiled
 *    with a newer header is refused only if it sets what this library does not know.
 * 5. Strings are UTF-8 and end with a zero; rondo copies what it keeps.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default) /* what is declared here, librondo.so exports */
#ifdef __cplusplus
extern "C" {
#endif

/* ---- values */

typedef int32_t rondo_code;
enum {
  RONDO_OK = 0,
  RONDO_INVALID_ARGUMENT = 1,   /* a value the caller passed; nothing has happened */
  RONDO_UNAVAILABLE = 2,        /* what this build, machine or collective does not have */
  RONDO_RESOURCE_EXHAUSTED = 3, /* memory, descriptors, address space */
  RONDO_MISMATCH = 4,           /* ranks disagree about the operation */
  RONDO_PEER_DIED = 5,          /* a rank ended, or left, in the middle */
  RONDO_TIMEOUT = 6,            /* nothing moved for the whole stall deadline */
  RONDO_ABORTED = 7,            /* rondo_abort */
  RONDO_SYSTEM = 8,             /* a system call failed */
  RONDO_BOOTSTRAP = 9,          /* ranks could not find or trust each other */
  RONDO_DATA_ERROR = 10         /* a file whose contents make no sense */
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
  RONDO_BOOL = 12, /* one byte: any but zero is true, and results are 0 or 1 */
  RONDO_FLOAT8_E4M3 = 13,
  RONDO_FLOAT8_E5M2 = 14
};

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
  RONDO_SCALED_SUM = 8 /* each rank's input times its own rondo_call_options.factor, then summed */
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
  RONDO_ALL_TO_ALL_V = 11
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
  RONDO_STAR = 8
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

/* The sentence that belongs to the last call of this thread that failed; "" before any has. Valid
 * until the next call of this thread that fails. */
const char* rondo_last_error(void);
/* "ok", "invalid argument", ... */
const char* rondo_code_name(rondo_code code);
/* Of this header, and of the package that it belongs to: CMake reads it here. */
#define RONDO_VERSION "0.1.0"
/* Of the library that runs: 10000 * major + 100 * minor + patch. */
int32_t rondo_version(void);

/* ---- creating communicators */

typedef struct rondo_communicator rondo_communicator;

/* What identifies one communicator's ranks to each other; copy it as bytes (MPI_Bcast, a file, a
 * store), and keep it secret: whoever of this user has it can join. */
typedef struct rondo_unique_id {
  char text[128];
} rondo_unique_id;
rondo_code rondo_make_unique_id(rondo_unique_id* id);

/* Gathers `bytes` bytes from every rank into `all`, in rank order, by means of the caller's own; 0,
 * or anything else for failure. As MPI_Allgather(own, bytes, MPI_BYTE, all, bytes, MPI_BYTE, ...).
 */
typedef int (*rondo_all_gather_function)(void* context, const void* own, size_t bytes, void* all);

/* How a communicator is made. Every rank passes the same values, apart from `rank`; where they
 * differ rank 0's win for everything that shapes the communication. Null strings are as empty
 * ones. */
typedef struct rondo_config {
  size_t size; /* of this struct */
  /* This rank and how many there are. Both -1 (the default): from the launcher's variables. */
  int32_t rank, world_size;
  /* Directory in which ranks of one host meet; null: from the environment. */
  const char* rendezvous;
  /* Tells communicators of one job apart; null: "world". */
  const char* name;
  /* A call fails when nothing at all has moved for this long; 0: RONDO_TIMEOUT (seconds), else ten
   * minutes. */
  int64_t timeout_ms;
  /* How long rondo_create waits for the other ranks. */
  int64_t bootstrap_timeout_ms;
  /* Pipelines per operation (0: one; each takes a thread, and with more threads than CPUs small
   * operations take microseconds), slots per link, bytes per slot (0: from the link profile). */
  int32_t channels, slots;
  size_t slot_bytes;
  /* "1GB/s,20us": delay every message to that bandwidth and latency; null: RONDO_PACE, else off. */
  const char* pace;
  /* Forces one algorithm for every operation that has it. */
  rondo_algorithm algorithm;
  int32_t reserved; /* 0 */
  /* Two ways to meet without a launcher, of which one may be set; rank and world_size then must be.
   * unique_id: the text that one rank's rondo_make_unique_id gave. all_gather: rondo_create calls
   * it once on every rank, with all_gather_context. */
  const char* unique_id;
  rondo_all_gather_function all_gather;
  void* all_gather_context;
  /* File of a link profile; null: RONDO_LINKS, else built in. */
  const char* links;
  /* Not 0: reductions fold in rank order, so that their bits depend on the inputs alone. */
  int32_t reproducible;
  int32_t reserved_too; /* 0 */
  /* The CUDA device whose memory this rank's buffers are in; -1 (the default): none. See
   * communicator.hpp for what is different then. */
  int32_t device;
  int32_t reserved_last; /* 0 */
} rondo_config;

/* Writes the defaults, for a struct of that size. */
void rondo_config_init(rondo_config* config, size_t size);

/* Meets the other ranks. Blocks at most bootstrap_timeout_ms until all have come, and at most as
 * long again for each thing that they then tell each other. A null config is all defaults. On
 * failure *communicator is null; a missing rank is named. Takes up to 128 KiB of stack. */
rondo_code rondo_create(rondo_communicator** communicator, const rondo_config* config);
/* Says goodbye. Does not wait for the peers. Outstanding asynchronous operations are waited for,
 * unless one has failed. */
void rondo_destroy(rondo_communicator* communicator);

/* Creation without waiting. rondo_pending_wait blocks until it is over, gives what rondo_create
 * would have given, and ends the handle; rondo_pending_test says, without blocking, whether it is
 * over. */
typedef struct rondo_pending rondo_pending;
rondo_code rondo_create_async(rondo_pending** pending, const rondo_config* config);
rondo_code rondo_pending_test(const rondo_pending* pending, int* over);
rondo_code rondo_pending_wait(rondo_pending* pending, rondo_communicator** communicator);

/* A communicator for each color, of the ranks that pass it, ordered by key, then by rank; null for
 * RONDO_NO_COLOR. Every rank calls it. Settings are those of `communicator`. */
enum { RONDO_NO_COLOR = -1 };
rondo_code rondo_split(rondo_communicator* communicator, int32_t color, int32_t key,
                       rondo_communicator** part);
/* Another communicator of the same ranks, whose operations are independent of this one's. */
rondo_code rondo_duplicate(rondo_communicator* communicator, rondo_communicator** same);

/* -1 for a null communicator. */
int rondo_rank(const rondo_communicator* communicator);
int rondo_size(const rondo_communicator* communicator);

/* ---- collectives */

/* What one call may override; where a call takes a pointer to it, null is all defaults. */
typedef struct rondo_call_options {
  size_t size;               /* of this struct */
  rondo_algorithm algorithm; /* RONDO_AUTO: the communicator's choice */
  int32_t reserved;          /* 0 */
  int64_t timeout_ms;        /* 0: the communicator's */
  double factor;             /* RONDO_SCALED_SUM only: what this rank's input is multiplied by */
  void* stream; /* with a device: the cudaStream_t on which the operation is enqueued */
} rondo_call_options;
void rondo_call_options_init(rondo_call_options* options, size_t size);

/* out[i] = op over all ranks of in[i], for `count` elements; out is the same bits on every rank. */
rondo_code rondo_all_reduce(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, rondo_reduce_op op,
                            const rondo_call_options* options);
/* in: size blocks of `count`; out: the reduction of every rank's block number `rank`. */
rondo_code rondo_reduce_scatter(rondo_communicator* communicator, const void* in, void* out,
                                size_t count, rondo_data_type type, rondo_reduce_op op,
                                const rondo_call_options* options);
/* in: `count` elements; out: size blocks of `count`, block r being rank r's in. */
rondo_code rondo_all_gather(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options);
/* out on every rank = in of `root`; in is ignored, and may be null, elsewhere. */
rondo_code rondo_broadcast(rondo_communicator* communicator, const void* in, void* out,
                           size_t count, rondo_data_type type, int32_t root,
                           const rondo_call_options* options);
/* out on `root` = op over all ranks of in; out is ignored, and may be null, elsewhere. */
rondo_code rondo_reduce(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, int32_t root, rondo_reduce_op op,
                        const rondo_call_options* options);
/* in: `count` elements; out on `root`: size blocks of `count`, block r being rank r's in; out is
 * ignored elsewhere. */
rondo_code rondo_gather(rondo_communicator* communicator, const void* in, void* out, size_t count,
                        rondo_data_type type, int32_t root, const rondo_call_options* options);
/* in on `root`: size blocks of `count`, ignored elsewhere; out: block number `rank` of it. */
rondo_code rondo_scatter(rondo_communicator* communicator, const void* in, void* out, size_t count,
                         rondo_data_type type, int32_t root, const rondo_call_options* options);
/* in, out: size blocks of `count`; block r of out is block number `rank` of rank r's in. */
rondo_code rondo_all_to_all(rondo_communicator* communicator, const void* in, void* out,
                            size_t count, rondo_data_type type, const rondo_call_options* options);
/* As rondo_all_gather, with blocks of different sizes: `size` counts, the same on every rank; out
 * holds counts[r] elements of rank r from element offsets[r] on (null: one after the other). */
rondo_code rondo_all_gather_v(rondo_communicator* communicator, const void* in, void* out,
                              const size_t* counts, const size_t* offsets, rondo_data_type type,
                              const rondo_call_options* options);
/* As rondo_reduce_scatter, likewise: in holds counts[r] elements for rank r. */
rondo_code rondo_reduce_scatter_v(rondo_communicator* communicator, const void* in, void* out,
                                  const size_t* counts, const size_t* offsets, rondo_data_type type,
                                  rondo_reduce_op op, const rondo_call_options* options);
/* As rondo_all_to_all: each rank gives its own counts, and what one sends is what the other
 * expects. */
rondo_code rondo_all_to_all_v(rondo_communicator* communicator, const void* in,
                              const size_t* in_counts, const size_t* in_offsets, void* out,
                              const size_t* out_counts, const size_t* out_offsets,
                              rondo_data_type type, const rondo_call_options* options);
/* Nobody leaves before everybody has come. */
rondo_code rondo_barrier(rondo_communicator* communicator, const rondo_call_options* options);

/* ---- messages between two ranks, and groups */

/* The k-th send to a peer meets its k-th recv from this rank; count and type must be the same. See
 * communicator.hpp for when a send returns. */
rondo_code rondo_send(rondo_communicator* communicator, const void* buffer, size_t count,
                      rondo_data_type type, int32_t peer, const rondo_call_options* options);
rondo_code rondo_recv(rondo_communicator* communicator, void* buffer, size_t count,
                      rondo_data_type type, int32_t peer, const rondo_call_options* options);
/* Calls from here on are collected; rondo_group_end carries them out, messages all at once and
 * beside the collectives, collectives in their order. Groups inside a group are part of it: all
 * begins with the outermost end. */
rondo_code rondo_group_start(rondo_communicator* communicator);
rondo_code rondo_group_end(rondo_communicator* communicator);

/* ---- asynchronous operations */

/* An operation under way. Any thread may use it at any time; releasing it is the last use. */
typedef struct rondo_work rondo_work;

/* The same collectives, at once back: rondo's progress thread carries them out, in issue order.
 * Where something is wrong at once, as with the arguments, the call fails and *work is null. A null
 * `work` asks for no handle; the operation goes on as it does when its handle is released. */
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
                              size_t count, rondo_data_type type, int32_t root, rondo_reduce_op op,
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
rondo_code rondo_send_async(rondo_communicator* communicator, const void* buffer, size_t count,
                            rondo_data_type type, int32_t peer, const rondo_call_options* options,
                            rondo_work** work);
rondo_code rondo_recv_async(rondo_communicator* communicator, void* buffer, size_t count,
                            rondo_data_type type, int32_t peer, const rondo_call_options* options,
                            rondo_work** work);
rondo_code rondo_barrier_async(rondo_communicator* communicator, const rondo_call_options* options,
                               rondo_work** work);

/* Blocks until the operation has ended; how it ended. May be called more than once. */
rondo_code rondo_work_wait(rondo_work* work);
/* Sets *ended to 1 if it has ended, else to 0; never blocks. */
rondo_code rondo_work_test(const rondo_work* work, int* ended);
/* RONDO_OK while it runs, then how it ended. */
rondo_code rondo_work_status(const rondo_work* work);
/* When it was issued, when its first byte could move and when it ended: CLOCK_MONOTONIC
 * nanoseconds, 0: not yet. */
typedef struct rondo_work_times {
  int64_t issued_ns, started_ns, ended_ns;
} rondo_work_times;
rondo_code rondo_get_work_times(const rondo_work* work, rondo_work_times* times, size_t size);
/* The operation itself goes on. */
void rondo_work_release(rondo_work* work);

/* ---- what a communicator knows */

/* Makes every pending and later call, on every rank, return RONDO_ABORTED with this reason. Any
 * thread. */
rondo_code rondo_abort(rondo_communicator* communicator, const char* reason);
/* The communicator's first failure, which every later call returns, or RONDO_OK. With a device it
 * looks for one first: ask it in a loop that waits for a stream. Any thread. */
rondo_code rondo_status(const rondo_communicator* communicator);

/* What would be done for one operation, and what it is predicted to cost. */
typedef struct rondo_plan {
  rondo_algorithm algorithm;
  int32_t channels;
  double predicted_us;
  uint64_t bytes_sent_per_rank; /* largest over the ranks */
} rondo_plan;
/* `op`: of collectives that reduce. `direct`: with library memory on every rank, else plain. */
rondo_code rondo_get_plan(const rondo_communicator* communicator, rondo_collective collective,
                          size_t count, rondo_data_type type, rondo_reduce_op op, int direct,
                          rondo_algorithm algorithm, rondo_plan* plan, size_t size);

/* Counters since creation, of this rank. */
typedef struct rondo_stats {
  uint64_t operations;
  uint64_t bytes_sent;   /* payload that this rank moved between itself and others */
  uint64_t shared_bytes; /* memory that all ranks of the communicator share, in all */
} rondo_stats;
rondo_code rondo_get_stats(const rondo_communicator* communicator, rondo_stats* stats, size_t size);

/* The last operations of every rank, and the messages with which ranks wait, as text. Writes at
 * most `capacity` bytes, always with a zero at the end; *needed, unless null, is what the whole
 * text takes, its zero included. `buffer` may be null when capacity is 0. */
rondo_code rondo_flight_record(const rondo_communicator* communicator, char* buffer,
                               size_t capacity, size_t* needed);

/* ---- library memory */

/* `bytes` of zeroed memory, aligned to 64 bytes, that the ranks of this host can read and write in
 * place, so that collectives need not stage. Null when there is none: then use any other memory. */
void* rondo_alloc(size_t bytes);
/* Null is allowed. No collective may still use it. */
void rondo_free(void* pointer);
/* 1 if [pointer, pointer + bytes) lies in library memory of this process, else 0. */
int rondo_is_library_memory(const void* pointer, size_t bytes);

/* ---- messages */

/* May run on any thread that rondo runs on, one call at a time, and must not call rondo. */
typedef void (*rondo_log_callback)(void* context, rondo_log_level level, const char* message);
/* Where rondo's own messages go; a null callback: to stderr. */
rondo_code rondo_set_log_callback(rondo_log_callback callback, void* context);
/* Messages below this level are dropped. */
rondo_code rondo_set_log_level(rondo_log_level level);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
