/* rondo.h's scans, gather_v, scatter_v, averages, registered memory, splits with a name, shrinks,
 * hosts and a launcher's place, as a C99 program sees them: on three forked ranks, blocking,
 * asynchronous and in a group; and what is refused. The others are in c_api_test.c. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rondo/rondo.h"
#include "tests/comm/c_api/expect.h"

static void scans(rondo_communicator* world, int async) {
  rondo_work* work = NULL;
  const int32_t in[2] = {rank + 1, 10 * (rank + 1)};
  const int32_t before = rank * (rank + 1) / 2, until = before + rank + 1;
  int32_t out[2] = {-1, -1};
  finish(async ? rondo_inclusive_scan_async(world, in, out, 2, RONDO_INT32, RONDO_SUM, NULL, &work)
               : rondo_inclusive_scan(world, in, out, 2, RONDO_INT32, RONDO_SUM, NULL),
         &work, async, "inclusive_scan");
  expect(out[0] == until && out[1] == 10 * until, "the sum up to this rank");
  finish(async ? rondo_exclusive_scan_async(world, in, out, 2, RONDO_INT32, RONDO_SUM, NULL, &work)
               : rondo_exclusive_scan(world, in, out, 2, RONDO_INT32, RONDO_SUM, NULL),
         &work, async, "exclusive_scan");
  expect(out[0] == before && out[1] == 10 * before, "the sum before this rank");
  expect_ok(rondo_exclusive_scan(world, in, out, 2, RONDO_INT32, RONDO_MIN, NULL), "min");
  expect(out[0] == (rank == 0 ? INT32_MAX : 1), "rank 0 has the identity");
}

static void registered(rondo_communicator* world) {
  enum { kPage = 4096, kBytes = 4 * kPage, kElements = kBytes / 4 };
  static char room[kBytes + kPage];
  float* const pages = (float*)(void*)(room + (kPage - (uintptr_t)room % kPage));
  pages[7] = 1;
  expect_ok(rondo_register_memory(pages, kBytes), "register_memory");
  expect(pages[7] == 1 && rondo_is_library_memory(pages, kBytes), "the same, as library memory");
  expect_ok(rondo_all_reduce(world, pages, pages, kElements, RONDO_FLOAT32, RONDO_SUM, NULL),
            "all_reduce of registered memory");
  expect_ok(rondo_unregister_memory(pages), "unregister_memory");
  expect(pages[7] == kRanks && pages[8] == 0 && !rondo_is_library_memory(pages, 1),
         "the sum, in private memory");
  expect_refused(rondo_unregister_memory(pages), "not a pointer that");
}

static void blocks(rondo_communicator* world, int async) {
  rondo_work* work = NULL;
  const size_t counts[kRanks] = {2, 0, 3}, offsets[kRanks] = {1, 0, 4};
  int32_t in[8], out[8];
  for (int i = 0; i < 8; ++i) in[i] = 100 * rank + i, out[i] = -1;
  finish(async ? rondo_gather_v_async(world, in, out, counts, offsets, RONDO_INT32, 1, NULL, &work)
               : rondo_gather_v(world, in, out, counts, offsets, RONDO_INT32, 1, NULL),
         &work, async, "gather_v");
  const int32_t gathered[8] = {-1, 0, 1, -1, 200, 201, 202, -1};
  for (int i = 0; i < 8; ++i) expect(out[i] == (rank == 1 ? gathered[i] : -1), "gather_v's result");
  for (int i = 0; i < 8; ++i) out[i] = -1;
  finish(async ? rondo_scatter_v_async(world, in, out, counts, offsets, RONDO_INT32, 2, NULL, &work)
               : rondo_scatter_v(world, in, out, counts, offsets, RONDO_INT32, 2, NULL),
         &work, async, "scatter_v");
  for (int i = 0; i < 8; ++i) {
    const int own = (size_t)i < counts[rank];
    expect(out[i] == (own ? 200 + (int32_t)offsets[rank] + i : -1), "scatter_v's result");
  }
}

static void refusals(rondo_communicator* world) {
  float in[4] = {0}, out[4] = {0};
  rondo_plan plan;
  expect_refused(rondo_gather_v(world, in, out, NULL, NULL, RONDO_FLOAT32, 0, NULL), "0 counts");
  expect_ok(rondo_get_plan(world, RONDO_EXCLUSIVE_SCAN, 1, RONDO_FLOAT32, RONDO_SUM, 0, RONDO_AUTO,
                           &plan, sizeof plan),
            "plan");
  expect(plan.algorithm == RONDO_TWO_SHOT, "a small scan takes one hop");
  expect_refused(rondo_get_plan(world, RONDO_ALL_REDUCE, 1, RONDO_FLOAT32, RONDO_BAND, 0,
                                RONDO_AUTO, &plan, sizeof plan),
                 "band");
}

/* An average that fits does not wrap. */
static void small_integers(rondo_communicator* world) {
  const int8_t in = (int8_t)(100 + rank);
  int8_t out = 0;
  expect_ok(rondo_all_reduce(world, &in, &out, 1, RONDO_INT8, RONDO_AVG, NULL), "average");
  expect(out == 101, "the average of 303");
}

/* Rank 1 ends `whole`; the others go on. */
static void shrinks(rondo_communicator* world) {
  rondo_communicator *whole = NULL, *left = NULL;
  int32_t one = 1, sum = 0;
  expect_ok(rondo_duplicate(world, &whole), "duplicate");
  if (rank == 1) {
    expect_ok(rondo_abort(whole, "enough of this"), "abort");
    rondo_destroy(whole);
    return;
  }
  expect(rondo_shrink(whole, -1, &left) == RONDO_INVALID_ARGUMENT && left == NULL, "no patience");
  expect_ok(rondo_shrink(whole, 20000, &left), "shrink");
  rondo_destroy(whole);
  expect(rondo_size(left) == kRanks - 1 && rondo_rank(left) == (rank == 0 ? 0 : 1), "order");
  expect(rondo_former_rank(left, 0) == 0 && rondo_former_rank(left, 1) == 2, "former ranks");
  expect(rondo_former_rank(left, 2) == -1 && rondo_former_rank(left, -1) == -1, "no such rank");
  expect(rondo_former_rank(world, 0) == -1 && rondo_former_rank(NULL, 0) == -1, "no shrink");
  expect_ok(rondo_all_reduce(left, &one, &sum, 1, RONDO_INT32, RONDO_SUM, NULL), "all_reduce");
  expect(sum == kRanks - 1, "the sum of those left");
  rondo_destroy(left);
}

static void hosts(const rondo_communicator* world) {
  expect(rondo_host(world, 0) == 0 && rondo_host(world, kRanks - 1) == 0, "hosts");
  expect(rondo_host(world, kRanks) == -1 && rondo_host(world, -1) == -1, "no such rank");
  expect(rondo_host(NULL, 0) == -1, "the host of none");
}

static void place_of_a_launcher(void) {
  rondo_place place = {9, 9, 9, 9};
  expect_ok(rondo_place_from_launcher(&place, sizeof place), "no launcher");
  expect(place.world_size == 0 && place.local_world_size == 0, "no launcher's ranks");
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "4", 1);
  setenv("LOCAL_RANK", "1", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  expect_ok(rondo_place_from_launcher(&place, sizeof place), "a launcher");
  expect(place.rank == 3 && place.world_size == 4 && place.local_rank == 1 &&
             place.local_world_size == 2,
         "its place");
  setenv("RANK", "4", 1);
  expect_refused(rondo_place_from_launcher(&place, sizeof place), "RANK");
  expect(rondo_place_from_launcher(NULL, sizeof place) == RONDO_INVALID_ARGUMENT, "null");
}

static void run_rank(const rondo_unique_id* id) {
  rondo_communicator* world = NULL;
  rondo_config config = config_of(rank, kRanks);
  config.unique_id = id->text;
  expect_ok(rondo_create(&world, &config), "create");
  for (int async = 0; async < 2; ++async) {
    scans(world, async);
    blocks(world, async);
  }
  refusals(world);
  small_integers(world);
  hosts(world);
  registered(world);
  shrinks(world);
  int32_t in = 1, sum = 0, before = -1;
  expect_ok(rondo_group_start(world), "group");
  expect_ok(rondo_inclusive_scan(world, &in, &sum, 1, RONDO_INT32, RONDO_SUM, NULL), "in a group");
  expect_ok(rondo_exclusive_scan(world, &in, &before, 1, RONDO_INT32, RONDO_SUM, NULL), "too");
  expect(rondo_group_end(world) == RONDO_OK && sum == rank + 1 && before == rank, "group_end");
  rondo_communicator* part = NULL;
  expect_ok(rondo_split_named(world, rank == 1 ? RONDO_NO_COLOR : 0, 0, "rows", &part), "split");
  expect((part == NULL) == (rank == 1), "no part without a color");
  if (part != NULL) {
    const rondo_code code =
        rank == 0 ? rondo_barrier(part, NULL)
                  : rondo_all_reduce(part, &in, &sum, 1, RONDO_INT32, RONDO_SUM, NULL);
    expect(code == RONDO_MISMATCH && strncmp(rondo_last_error(), "rows: ", 6) == 0,
           "its errors begin with the name");
  }
  rondo_destroy(part);
  rondo_destroy(world);
  place_of_a_launcher();
}

int main(void) {
  rondo_unique_id id;
  expect_ok(rondo_make_unique_id(&id), "make_unique_id");
  run_ranks(run_rank, &id);
  return 0;
}
