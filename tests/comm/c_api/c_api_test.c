/* rondo.h as a C99 program sees it: every function, on three forked ranks that meet by a unique id,
 * then by an all-gather of the program's own; and what is refused, in which words. */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "rondo/rondo.h"
#include "tests/comm/c_api/expect.h"

enum { kCount = 1000 };

/* ---- every collective, blocking and asynchronous */

/* Element i of block b of what rank r gives. */
static int32_t given(int r, int b, int i) { return 10000 * r + 1000 * b + i % 97; }

static int32_t in[kRanks * kCount], out[kRanks * kCount];

static void prepare(void) {
  for (int b = 0; b < kRanks; ++b) {
    for (int i = 0; i < kCount; ++i) {
      in[b * kCount + i] = given(rank, b, i);
      out[b * kCount + i] = -1;
    }
  }
}

enum { kEach = -1 };

/* Block b of out is element by element what `from`'s block `block` was. `from` is a rank, or kEach:
 * rank b, or kRanks: the sum over all ranks. */
static void expect_block(int b, int from, int block, const char* what) {
  for (int i = 0; i < kCount; ++i) {
    int32_t wanted = 0;
    for (int r = 0; r < kRanks; ++r) {
      if (from == r || from == kRanks || (from == kEach && r == b)) wanted += given(r, block, i);
    }
    expect(out[b * kCount + i] == wanted, what);
  }
}

/* The first `blocks` blocks of out are that, the others have not been touched. Prepares the next call. */
static void expect_blocks(int blocks, int from, int block, const char* what) {
  for (int b = 0; b < blocks; ++b) expect_block(b, from, block, what);
  for (int i = blocks * kCount; i < kRanks * kCount; ++i) expect(out[i] == -1, what);
  prepare();
}

static void every_collective(rondo_communicator* world, int async) {
  rondo_work* work = NULL;
  const rondo_data_type t = RONDO_INT32;
  prepare();
  finish(async ? rondo_all_reduce_async(world, in, out, kCount, t, RONDO_SUM, NULL, &work)
               : rondo_all_reduce(world, in, out, kCount, t, RONDO_SUM, NULL),
         &work, async, "all_reduce");
  expect_blocks(1, kRanks, 0, "all_reduce");
  finish(async ? rondo_reduce_scatter_async(world, in, out, kCount, t, RONDO_SUM, NULL, &work)
               : rondo_reduce_scatter(world, in, out, kCount, t, RONDO_SUM, NULL),
         &work, async, "reduce_scatter");
  expect_blocks(1, kRanks, rank, "reduce_scatter");
  finish(async ? rondo_all_gather_async(world, in, out, kCount, t, NULL, &work)
               : rondo_all_gather(world, in, out, kCount, t, NULL),
         &work, async, "all_gather");
  expect_blocks(kRanks, kEach, 0, "all_gather");
  finish(async ? rondo_broadcast_async(world, in, out, kCount, t, 1, NULL, &work)
               : rondo_broadcast(world, in, out, kCount, t, 1, NULL),
         &work, async, "broadcast");
  expect_blocks(1, 1, 0, "broadcast");
  finish(async ? rondo_reduce_async(world, in, out, kCount, t, RONDO_SUM, 2, NULL, &work)
               : rondo_reduce(world, in, out, kCount, t, RONDO_SUM, 2, NULL),
         &work, async, "reduce");
  expect_blocks(rank == 2 ? 1 : 0, kRanks, 0, "reduce");
  finish(async ? rondo_gather_async(world, in, out, kCount, t, 1, NULL, &work)
               : rondo_gather(world, in, out, kCount, t, 1, NULL),
         &work, async, "gather");
  expect_blocks(rank == 1 ? kRanks : 0, kEach, 0, "gather");
  finish(async ? rondo_scatter_async(world, in, out, kCount, t, 2, NULL, &work)
               : rondo_scatter(world, in, out, kCount, t, 2, NULL),
         &work, async, "scatter");
  expect_blocks(1, 2, rank, "scatter");
  finish(async ? rondo_all_to_all_async(world, in, out, kCount, t, NULL, &work)
               : rondo_all_to_all(world, in, out, kCount, t, NULL),
         &work, async, "all_to_all");
  expect_blocks(kRanks, kEach, rank, "all_to_all");
  finish(async ? rondo_barrier_async(world, NULL, &work) : rondo_barrier(world, NULL), &work, async,
         "barrier");
}

static void life_of_a_work(rondo_communicator* world) {
  rondo_work* work = NULL;
  rondo_work_times times;
  int ended = -1;
  expect_ok(rondo_barrier_async(world, NULL, &work), "barrier");
  expect_ok(rondo_work_wait(work), "wait");
  expect_ok(rondo_work_test(work, &ended), "test");
  expect(ended == 1, "test after wait");
  expect_ok(rondo_work_status(work), "status");
  expect_ok(rondo_get_work_times(work, &times, sizeof times), "times");
  expect(0 < times.issued_ns && times.issued_ns <= times.started_ns &&
             times.started_ns <= times.ended_ns,
         "times are in order");
  rondo_work_release(work);
}

/* Rank r has r + 1 elements for everybody, and gets r + 1 of every sum. */
static void varying(rondo_communicator* world, int async) {
  rondo_work* work = NULL;
  const rondo_data_type t = RONDO_INT32;
  size_t counts[kRanks], offsets[kRanks], same[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    counts[r] = (size_t)r + 1;
    offsets[r] = (size_t)(kRanks - 1 - r) * kCount;
    same[r] = (size_t)rank + 1;
  }
  prepare();
  finish(async ? rondo_all_gather_v_async(world, in, out, counts, offsets, t, NULL, &work)
               : rondo_all_gather_v(world, in, out, counts, offsets, t, NULL),
         &work, async, "all_gather_v");
  for (int r = 0; r < kRanks; ++r) {
    expect(out[offsets[r] + (size_t)r] == given(r, 0, r), "all_gather_v");
    expect(out[offsets[r] + (size_t)r + 1] == -1, "no more than all_gather_v gathers");
  }
  prepare();
  finish(async ? rondo_reduce_scatter_v_async(world, in, out, counts, offsets, t, RONDO_MAX, NULL,
                                              &work)
               : rondo_reduce_scatter_v(world, in, out, counts, offsets, t, RONDO_MAX, NULL),
         &work, async, "reduce_scatter_v");
  expect(out[rank] == given(kRanks - 1, kRanks - 1 - rank, rank) && out[rank + 1] == -1,
         "reduce_scatter_v");
  prepare();
  finish(async
             ? rondo_all_to_all_v_async(world, in, same, offsets, out, counts, NULL, t, NULL, &work)
             : rondo_all_to_all_v(world, in, same, offsets, out, counts, NULL, t, NULL),
         &work, async, "all_to_all_v");
  for (int r = 0, at = 0; r < kRanks; at += r + 1, ++r) {
    expect(out[at + r] == given(r, kRanks - 1 - rank, r), "all_to_all_v");
  }
  expect_refused(rondo_all_gather_v(world, in, out, NULL, NULL, t, NULL), "0 counts");
}

static void messages_and_groups(rondo_communicator* world) {
  const int next = (rank + 1) % kRanks, prev = (rank + kRanks - 1) % kRanks;
  rondo_work *sent = NULL, *received = NULL;
  prepare();
  expect_ok(rondo_group_start(world), "group_start");
  expect_ok(rondo_recv(world, out, kCount, RONDO_INT32, prev, NULL), "recv");
  expect_ok(
      rondo_all_reduce(world, in + kCount, out + kCount, kCount, RONDO_INT32, RONDO_SUM, NULL),
      "all_reduce in a group");
  expect_ok(rondo_send(world, in, kCount, RONDO_INT32, next, NULL), "send");
  expect(out[0] == -1, "nothing before the end of the group");
  expect_ok(rondo_group_end(world), "group_end");
  expect_block(0, prev, 0, "recv");
  expect_block(1, kRanks, 1, "all_reduce in a group");
  prepare();
  expect_ok(rondo_recv_async(world, out, kCount, RONDO_INT32, prev, NULL, &received), "recv_async");
  expect_ok(rondo_send_async(world, in, kCount, RONDO_INT32, next, NULL, &sent), "send_async");
  finish(RONDO_OK, &sent, 1, "send");
  finish(RONDO_OK, &received, 1, "recv");
  expect_block(0, prev, 0, "recv_async");
  /* What C refuses spoils the group too: no peer waits for the other half of it. */
  expect_ok(rondo_group_start(world), "group_start");
  expect_ok(rondo_recv(world, out, kCount, RONDO_INT32, prev, NULL), "recv");
  expect_refused(rondo_send(world, in, kCount, 99, next, NULL), "99");
  expect(rondo_group_end(world) == RONDO_INVALID_ARGUMENT, "a spoilt group");
}

static void parts(rondo_communicator* world) {
  rondo_communicator *part = world, *same = NULL;
  int32_t one = 1, sum = 0;
  /* Ranks 0 and 2, the other way round; rank 1 stands aside. */
  expect_ok(rondo_split(world, rank == 1 ? RONDO_NO_COLOR : 0, -rank, &part), "split");
  expect((part == NULL) == (rank == 1), "no part without a color");
  if (part != NULL) {
    expect(rondo_size(part) == 2 && rondo_rank(part) == (rank == 2 ? 0 : 1), "order by key");
    expect_ok(rondo_all_reduce(part, &one, &sum, 1, RONDO_INT32, RONDO_SUM, NULL), "in the part");
    expect(sum == 2, "of two");
    rondo_destroy(part);
  }
  expect_ok(rondo_duplicate(world, &same), "duplicate");
  expect_ok(rondo_all_reduce(same, &one, &sum, 1, RONDO_INT32, RONDO_SUM, NULL),
            "in the duplicate");
  expect(sum == kRanks && rondo_rank(same) == rank, "of all");
  rondo_destroy(same);
}

static void options_of_calls(rondo_communicator* world) {
  rondo_call_options options;
  rondo_call_options_init(&options, sizeof options);
  options.algorithm = RONDO_RING;
  options.stall_timeout_ms = 30000;
  options.factor = 1 + rank;
  const float one = 1;
  float sum = 0;
  expect_ok(rondo_all_reduce(world, &one, &sum, 1, RONDO_FLOAT32, RONDO_MULSUM, &options),
            "scaled sum");
  expect(sum == 1 + 2 + 3, "every rank's own factor");
  /* A work that nobody asked for goes on. */
  expect_ok(rondo_all_reduce_async(world, &one, &sum, 1, RONDO_FLOAT32, RONDO_SUM, NULL, NULL),
            "no handle");
  expect_ok(rondo_barrier(world, NULL), "barrier behind it");
  expect(sum == kRanks, "the dropped operation");
}

static void what_is_known(rondo_communicator* world) {
  enum { kMany = 3 * 1024 }; /* whole cache lines for each rank */
  rondo_plan plan;
  expect_ok(rondo_get_plan(world, RONDO_ALL_REDUCE, kMany, RONDO_FLOAT32, RONDO_SUM, 0, RONDO_RING,
                           &plan, sizeof plan),
            "plan");
  expect(plan.algorithm == RONDO_RING && plan.channels == 1 && plan.predicted_us > 0,
         "the plan's values");
  const uint64_t formula = 2 * (kRanks - 1) * kMany * sizeof(float) / kRanks;
  expect(plan.bytes_sent_per_rank == formula, "2(N-1)/N of the bytes");

  rondo_stats before, after;
  struct {
    rondo_stats known;
    uint64_t later[2];
  } newer;
  expect_ok(rondo_get_stats(world, &before, sizeof before), "stats");
  rondo_call_options ring;
  rondo_call_options_init(&ring, sizeof ring);
  ring.algorithm = RONDO_RING;
  float data[kMany] = {0};
  expect_ok(rondo_all_reduce(world, data, data, kMany, RONDO_FLOAT32, RONDO_SUM, &ring), "ring");
  expect_ok(rondo_get_stats(world, &after, sizeof after), "stats");
  expect(after.operations == before.operations + 1, "operations are counted");
  expect(after.bytes_sent == before.bytes_sent + formula, "bytes are counted");
  memset(&newer, 0xff, sizeof newer);
  expect_ok(rondo_get_stats(world, &newer.known, sizeof newer), "a newer program's stats");
  expect(newer.known.operations == after.operations && newer.later[0] == 0 && newer.later[1] == 0,
         "what this library does not count is 0");
  after.bytes_sent = 7;
  expect_ok(rondo_get_stats(world, &after, sizeof after.operations), "an older program's stats");
  expect(after.bytes_sent == 7, "nothing behind its struct is touched");

  char whole[65536], cut[16];
  size_t needed = 0;
  expect_ok(rondo_flight_record(world, NULL, 0, &needed), "only the length");
  expect(needed > sizeof cut && needed < sizeof whole, "a length");
  expect_ok(rondo_flight_record(world, whole, sizeof whole, &needed), "the record");
  expect(strstr(whole, "all_reduce") != NULL, "the record names what was called");
  memset(cut, 'x', sizeof cut);
  expect_ok(rondo_flight_record(world, cut, sizeof cut - 1, NULL), "the beginning");
  expect(strlen(cut) == sizeof cut - 2 && cut[sizeof cut - 1] == 'x', "no more than its capacity");
  expect(strncmp(cut, whole, 4) == 0, "the beginning of the same");
}

static void refused(rondo_communicator* world) {
  float x = 0;
  rondo_work* work = (rondo_work*)&x;
  rondo_call_options options;
  expect_refused(rondo_all_reduce(NULL, &x, &x, 1, RONDO_FLOAT32, RONDO_SUM, NULL),
                 "the communicator is null");
  expect_refused(rondo_all_reduce(world, &x, &x, 1, 300, RONDO_SUM, NULL), "unknown data type 300");
  expect_refused(rondo_all_reduce(world, &x, &x, 1, 256, RONDO_SUM, NULL),
                 "unknown data type 256"); /* not 0 */
  expect_refused(rondo_reduce(world, &x, &x, 1, RONDO_FLOAT32, -1, 0, NULL), "unknown operator -1");
  expect_refused(rondo_all_reduce_async(world, NULL, &x, 1, RONDO_FLOAT32, RONDO_SUM, NULL, &work),
                 "null");
  expect(work == NULL, "no work where the arguments are wrong");
  expect_refused(rondo_work_wait(NULL), "the work is null");

  rondo_call_options_init(&options, sizeof options);
  options.algorithm = 99;
  expect_refused(rondo_barrier(world, &options), "unknown algorithm 99");
  rondo_call_options_init(&options, sizeof options);
  options.reserved = 1;
  expect_refused(rondo_barrier(world, &options), "reserved is 1");
  memset(&options, 0, sizeof options);
  expect_refused(rondo_barrier(world, &options), "size is 0");
  expect_refused(
      rondo_get_plan(world, 77, 1, RONDO_FLOAT32, RONDO_SUM, 0, RONDO_AUTO, (rondo_plan*)&x, 4),
      "unknown collective 77");
  expect_refused(rondo_flight_record(world, NULL, 8, NULL), "the buffer is null");
  /* Nothing of all this has broken anything. */
  expect_ok(rondo_status(world), "status");
  expect_ok(rondo_barrier(world, NULL), "barrier after refusals");
}

static void library_memory(rondo_communicator* world) {
  float* memory = rondo_alloc(kCount * sizeof *memory);
  expect(memory != NULL && rondo_is_library_memory(memory, kCount * sizeof *memory), "alloc");
  expect(!rondo_is_library_memory(in, sizeof in), "not library memory");
  memory[7] = 1;
  expect_ok(rondo_all_reduce(world, memory, memory, kCount, RONDO_FLOAT32, RONDO_SUM, NULL),
            "library memory");
  expect(memory[7] == kRanks && memory[8] == 0, "the sum in library memory");
  rondo_free(memory);
  rondo_free(NULL);
}

static void aborted(rondo_communicator* world) {
  /* Rank 1 may leave this barrier, and abort, while others are still in it. */
  rondo_code code = rondo_barrier(world, NULL);
  if (rank == 1) expect_ok(rondo_abort(world, "enough"), "abort");
  while (code == RONDO_OK) code = rondo_barrier(world, NULL);
  expect_error(code, RONDO_ABORTED, "rank 1 aborted: enough");
  expect_error(rondo_status(world), RONDO_ABORTED, "enough");
}

/* ---- ranks */

static int pipes[kRanks][kRanks][2]; /* from, to */

static int gather_over_pipes(void* context, const void* own, size_t bytes, void* all) {
  ++*(int*)context;
  for (int r = 0; r < kRanks; ++r) {
    if (write(pipes[rank][r][1], own, bytes) != (ssize_t)bytes) return 1;
  }
  for (int r = 0; r < kRanks; ++r) {
    if (read(pipes[r][rank][0], (char*)all + (size_t)r * bytes, bytes) != (ssize_t)bytes) return 2;
  }
  return 0;
}

static int refuse_to_gather(void* context, const void* own, size_t bytes, void* all) {
  (void)context, (void)own, (void)bytes, (void)all;
  return 42;
}

static int never_to_be_called(void* context, const void* own, size_t bytes, void* all) {
  (void)context, (void)own, (void)bytes, (void)all, abort();
}

static void rank_with_id(const rondo_unique_id* id) {
  rondo_config config = config_of(rank, kRanks);
  config.unique_id = id->text;
  rondo_communicator* world = NULL;
  expect_ok(rondo_create(&world, &config), "create by unique id");
  expect(rondo_rank(world) == rank && rondo_size(world) == kRanks, "rank and size");
  every_collective(world, 0);
  every_collective(world, 1);
  life_of_a_work(world);
  varying(world, 0);
  varying(world, 1);
  messages_and_groups(world);
  parts(world);
  options_of_calls(world);
  what_is_known(world);
  refused(world);
  library_memory(world);
  aborted(world);
  rondo_destroy(world);
}

static void rank_with_gather(const rondo_unique_id* unused) {
  (void)unused;
  int calls = 0;
  rondo_config config = config_of(rank, kRanks);
  config.all_gather = gather_over_pipes;
  config.all_gather_context = &calls;
  config.name = "gathered";
  config.reproducible = 1;
  rondo_communicator* world = NULL;
  rondo_pending* pending = NULL;
  int over = -1;
  expect_ok(rondo_create_async(&pending, &config), "create by all-gather");
  expect_ok(rondo_pending_test(pending, &over), "pending_test");
  expect(over == 0 || over == 1, "over or not");
  expect_ok(rondo_pending_wait(pending, &world), "created");
  expect(calls == 1, "called once");
  rondo_call_options ring;
  rondo_call_options_init(&ring, sizeof ring);
  ring.algorithm = RONDO_RING;
  expect_error(rondo_all_reduce(world, in, out, 1, RONDO_INT32, RONDO_SUM, &ring),
               RONDO_UNAVAILABLE, "rank order");
  every_collective(world, 0);
  rondo_destroy(world);
}

/* ---- one process */

static void configurations(void) {
  rondo_communicator* alone = NULL;
  rondo_config config;
  struct {
    rondo_config known;
    int64_t later;
  } newer;

  expect_refused(rondo_create(NULL, NULL), "the place for the communicator");
  memset(&config, 0, sizeof config);
  expect_refused(rondo_create(&alone, &config), "rondo_config.size is 0");
  expect(alone == NULL, "null after failure");
  rondo_config_init(&config, sizeof config);
  expect(config.size == sizeof config && config.rank == -1 && config.world_size == -1 &&
             config.stall_timeout_ms == 0 && config.bootstrap_timeout_ms == 0 &&
             config.algorithm == RONDO_AUTO && config.unique_id == NULL,
         "the defaults");
  config.algorithm = 99;
  expect_refused(rondo_create(&alone, &config), "unknown algorithm 99");
  rondo_config_init(&config, sizeof config);
  config.unique_id = "short";
  expect_refused(rondo_create(&alone, &config), "Config::rank is -1");
  config.rank = 0;
  config.world_size = 2;
  expect_refused(rondo_create(&alone, &config), "5 characters");
  config.unique_id = NULL;
  config.all_gather = refuse_to_gather;
  expect_error(rondo_create(&alone, &config), RONDO_BOOTSTRAP, "it returned 42");
  config.world_size = -1; /* not called: there is no telling how much it would write */
  config.all_gather = never_to_be_called;
  expect_refused(rondo_create(&alone, &config), "Config::all_gather");
  config.all_gather = refuse_to_gather;

  /* A program with an older header has a shorter struct; what lies behind it is not read. */
  rondo_config_init(&config, offsetof(rondo_config, slot_bytes));
  expect(config.size == offsetof(rondo_config, slot_bytes), "the older size");
  expect(config.all_gather == refuse_to_gather, "init stays inside the older struct");
  config.rank = 0;
  config.world_size = 1;
  expect_ok(rondo_create(&alone, &config), "an older program's config");
  rondo_destroy(alone);
  /* One with a newer header has a longer one, which must not ask for what is not known here. */
  memset(&newer, 0xff, sizeof newer);
  rondo_config_init(&newer.known, sizeof newer);
  expect(newer.later == 0, "what is not known is 0");
  newer.known.rank = 0;
  newer.known.world_size = 1;
  expect_ok(rondo_create(&alone, &newer.known), "a newer program's config");
  rondo_destroy(alone);
  newer.later = 5;
  expect_refused(rondo_create(&alone, &newer.known), "older than");
  rondo_destroy(NULL);
  rondo_work_release(NULL);
  expect(rondo_rank(NULL) == -1 && rondo_size(NULL) == -1, "of nothing");
}

static void* error_of_new_thread(void* unused) {
  (void)unused;
  return *rondo_last_error() == '\0' ? NULL : "not empty";
}

static void errors_belong_to_threads(void) {
  pthread_t thread;
  void* said = "not run";
  expect(rondo_work_wait(NULL) != RONDO_OK && *rondo_last_error() != '\0', "an error here");
  expect(pthread_create(&thread, NULL, error_of_new_thread, NULL) == 0, "pthread_create");
  pthread_join(thread, &said);
  expect(said == NULL, "and none there");
}

static void keep_message(void* context, rondo_log_level level, const char* message) {
  char* const first = context;
  if (level == RONDO_LOG_INFO && *first == '\0') snprintf(first, 200, "%s", message);
}

static void messages(void) {
  char message[200] = "";
  expect_ok(rondo_set_log_callback(keep_message, message), "callback");
  expect_ok(rondo_set_log_level(RONDO_LOG_INFO), "level");
  expect_refused(rondo_set_log_level(17), "unknown log level 17");
  rondo_destroy(create_alone());
  expect(strstr(message, "rank 0 of 1") != NULL, "what create says");
  expect_ok(rondo_set_log_level(RONDO_LOG_WARN), "level");
  expect_ok(rondo_set_log_callback(NULL, NULL), "no callback");
}

/* Memory for one more string of 16 MiB is refused by the system: no exception, but a code. */
static void no_memory(void) {
  enum { kBytes = 16 << 20 };
  rondo_communicator* alone = create_alone();
  char* reason = malloc(kBytes);
  expect(reason != NULL, "malloc");
  memset(reason, 'r', kBytes - 1);
  reason[kBytes - 1] = '\0';
  unsigned long pages = 0;
  FILE* statm = fopen("/proc/self/statm", "r");
  expect(statm != NULL && fscanf(statm, "%lu", &pages) == 1, "statm");
  fclose(statm);
  struct rlimit before, tight;
  getrlimit(RLIMIT_AS, &before);
  tight = before;
  tight.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + kBytes / 2;
  expect(setrlimit(RLIMIT_AS, &tight) == 0, "setrlimit");
  const rondo_code code = rondo_abort(alone, reason);
  setrlimit(RLIMIT_AS, &before);
  expect_error(code, RONDO_RESOURCE_EXHAUSTED, "memory");
  expect_ok(rondo_status(alone), "nothing has happened");
  free(reason);
  rondo_destroy(alone);
}

int main(void) {
  rondo_unique_id id;
  expect(*rondo_last_error() == '\0', "no error yet");
  expect(strcmp(rondo_code_name(RONDO_DATA_ERROR), "bad data") == 0 &&
             strcmp(rondo_code_name(RONDO_DATA_ERROR + 1), "unknown code") == 0,
         "the last code of C is the last of C++");
  expect_ok(rondo_make_unique_id(&id), "make_unique_id");
  expect(strlen(id.text) > 32, "an id");
  for (int from = 0; from < kRanks; ++from) {
    for (int to = 0; to < kRanks; ++to) expect(pipe(pipes[from][to]) == 0, "pipe");
  }
  /* Forks come before threads. */
  run_ranks(rank_with_id, &id);
  run_ranks(rank_with_gather, NULL);
  alarm(kLimitSeconds);
  configurations();
  errors_belong_to_threads();
  messages();
  if (!SANITIZED) no_memory(); /* the sanitizers need address space of their own */
  return 0;
}
