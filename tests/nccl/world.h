/* The ranks that a test program drives, in one of three ways:
 *   PROGRAM               one rank, of those that rondo-run started
 *   PROGRAM threads N     N threads, a rank each (ncclCommInitRank)
 *   PROGRAM one N         N ranks of one thread (ncclCommInitAll, every step in a group)
 * Any failure ends the program with a sentence. C99. */
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl/abi.h"

enum { kMostRanks = 8, kLimitSeconds = 100 };

typedef struct {
  int size;              /* ranks of the communicator */
  int locals;            /* those that this thread drives */
  int ranks[kMostRanks]; /* which */
  ncclComm_t comms[kMostRanks];
} World;

/* Each takes the line that calls it. */
static inline void expect(int line, int good) {
  if (good) return;
  fprintf(stderr, "line %d (of the test, or of world.h): not as expected; last error: %s\n", line,
          ncclGetLastError(NULL));
  fflush(stderr);
  _exit(1);
}
static inline void expect_ok(int line, ncclResult_t result) { expect(line, result == ncclSuccess); }
/* The call gave this number, and its sentence holds this part. */
static inline void expect_error(int line, ncclResult_t result, ncclResult_t number,
                                const char* part) {
  if (result != number)
    fprintf(stderr, "line %d: the result is %d, not %d\n", line, (int)result, (int)number);
  expect(line, result == number && strstr(ncclGetLastError(NULL), part) != NULL);
}

static inline double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Looks again after a moment; ends the program at the limit. */
static inline void pause_until(double limit_s, const char* what) {
  const struct timespec moment = {0, 2000000};
  if (now_s() >= limit_s) fprintf(stderr, "%s\n", what);
  expect(__LINE__, now_s() < limit_s);
  nanosleep(&moment, NULL);
}

static inline void steps_begin(const World* world) {
  if (world->locals > 1) expect_ok(__LINE__, ncclGroupStart());
}
static inline void steps_end(const World* world) {
  if (world->locals > 1) expect_ok(__LINE__, ncclGroupEnd());
}

static inline int from_environment(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? -1 : atoi(text);
}

/* Rank 0 leaves the id in a file that is named after the process which started all. */
static inline ncclUniqueId id_of_launch(int rank) {
  char path[64], made[80];
  ncclUniqueId id;
  snprintf(path, sizeof path, "/tmp/rondo-nccl-test-%d", (int)getppid());
  if (rank == 0) {
    expect_ok(__LINE__, ncclGetUniqueId(&id));
    snprintf(made, sizeof made, "%s.made", path);
    FILE* file = fopen(made, "wb");
    expect(__LINE__, file != NULL && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
    expect(__LINE__, rename(made, path) == 0);
    return id;
  }
  const double limit_s = now_s() + kLimitSeconds;
  FILE* file;
  while ((file = fopen(path, "rb")) == NULL) pause_until(limit_s, "rank 0 leaves no id");
  expect(__LINE__, fread(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
  return id;
}

/* By rank 0, after all have met. */
static inline void forget_id_of_launch(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/rondo-nccl-test-%d", (int)getppid());
  unlink(path);
}

typedef void (*Body)(World* world);

struct Thread {
  pthread_t thread;
  World world;
  ncclUniqueId id;
  Body body;
};

static inline void* run_thread(void* argument) {
  struct Thread* thread = argument;
  World* world = &thread->world;
  expect_ok(__LINE__, ncclCommInitRank(&world->comms[0], world->size, thread->id, world->ranks[0]));
  thread->body(world);
  expect_ok(__LINE__, ncclCommDestroy(world->comms[0]));
  return NULL;
}

static inline void run_threads(int size, Body body) {
  static struct Thread threads[kMostRanks];
  expect_ok(__LINE__, ncclGetUniqueId(&threads[0].id));
  for (int rank = 0; rank < size; ++rank) {
    threads[rank].world = (World){size, 1, {rank}, {NULL}};
    threads[rank].id = threads[0].id;
    threads[rank].body = body;
    expect(__LINE__, pthread_create(&threads[rank].thread, NULL, run_thread, &threads[rank]) == 0);
  }
  for (int rank = 0; rank < size; ++rank) pthread_join(threads[rank].thread, NULL);
}

static inline void run_one(int size, Body body) {
  World world = {size, size, {0}, {NULL}};
  for (int rank = 0; rank < size; ++rank) world.ranks[rank] = rank;
  expect_ok(__LINE__, ncclCommInitAll(world.comms, size, NULL));
  body(&world);
  for (int rank = 0; rank < size; ++rank) expect_ok(__LINE__, ncclCommDestroy(world.comms[rank]));
}

static inline void run_process(Body body) {
  World world = {from_environment("WORLD_SIZE"), 1, {from_environment("RANK")}, {NULL}};
  expect(__LINE__, world.size >= 1 && world.size <= kMostRanks && world.ranks[0] >= 0);
  const ncclUniqueId id = id_of_launch(world.ranks[0]);
  expect_ok(__LINE__, ncclCommInitRank(&world.comms[0], world.size, id, world.ranks[0]));
  if (world.ranks[0] == 0) forget_id_of_launch();
  body(&world);
  expect_ok(__LINE__, ncclCommDestroy(world.comms[0]));
}

static inline int run(int argc, char** argv, Body body) {
  alarm(kLimitSeconds);
  setenv("RONDO_NCCL_HOST", "1", 1);
  const int size = argc == 3 ? atoi(argv[2]) : 0;
  expect(__LINE__, size <= kMostRanks);
  if (argc == 1) {
    run_process(body);
  } else if (argc == 3 && strcmp(argv[1], "threads") == 0) {
    run_threads(size, body);
  } else {
    expect(__LINE__, argc == 3 && strcmp(argv[1], "one") == 0);
    run_one(size, body);
  }
  puts("all right");
  return 0;
}
