/* The ranks that a test program drives:
 *   PROGRAM [THREADS LOCALS]
 * so many threads with so many ranks each (1 and 1), in each process of rondo-run or in this one.
 * A thread groups the steps of its ranks. Communicators come from ncclCommInitRank in the rank's
 * thread, ncclCommInitAll if one thread has all, or a group of the main thread. A failure ends
 * the program with a message. C99. */
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

/* Process 0 leaves the id in a file that is named after the process which started all. */
static inline ncclUniqueId id_of_launch(int process) {
  char path[64], made[80];
  ncclUniqueId id;
  snprintf(path, sizeof path, "/tmp/rondo-nccl-test-%d", (int)getppid());
  if (process == 0) {
    expect_ok(__LINE__, ncclGetUniqueId(&id));
    snprintf(made, sizeof made, "%s.made", path);
    FILE* file = fopen(made, "wb");
    expect(__LINE__, file != NULL && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
    expect(__LINE__, rename(made, path) == 0);
    return id;
  }
  const double limit_s = now_s() + kLimitSeconds;
  FILE* file;
  while ((file = fopen(path, "rb")) == NULL) pause_until(limit_s, "process 0 leaves no id");
  expect(__LINE__, fread(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
  return id;
}

/* By process 0, after all have met. */
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
  int removes_id; /* whether it removes the id's file once all ranks have joined */
};

static inline void* run_thread(void* argument) {
  struct Thread* thread = argument;
  World* world = &thread->world;
  if (world->comms[0] == NULL)
    expect_ok(__LINE__,
              ncclCommInitRank(&world->comms[0], world->size, thread->id, world->ranks[0]));
  if (thread->removes_id) forget_id_of_launch();
  thread->body(world);
  for (int l = 0; l < world->locals; ++l) expect_ok(__LINE__, ncclCommDestroy(world->comms[l]));
  return NULL;
}

/* Those of the process's threads, in one group. */
static inline void create_in_group(struct Thread* threads, int count) {
  expect_ok(__LINE__, ncclGroupStart());
  for (int t = 0; t < count; ++t) {
    World* world = &threads[t].world;
    for (int l = 0; l < world->locals; ++l)
      expect_ok(__LINE__,
                ncclCommInitRank(&world->comms[l], world->size, threads[t].id, world->ranks[l]));
  }
  expect_ok(__LINE__, ncclGroupEnd());
}

static inline int run(int argc, char** argv, Body body) {
  static struct Thread threads[kMostRanks];
  const int launched = getenv("WORLD_SIZE") != NULL;
  const int processes = launched ? from_environment("WORLD_SIZE") : 1;
  const int process = launched ? from_environment("RANK") : 0;
  const int count = argc == 3 ? atoi(argv[1]) : 1, locals = argc == 3 ? atoi(argv[2]) : 1;
  const int size = processes * count * locals;
  alarm(kLimitSeconds);
  setenv("RONDO_NCCL_HOST", "1", 1);
  expect(__LINE__, (argc == 1 || argc == 3) && size >= 1 && size <= kMostRanks && process >= 0);
  ncclUniqueId id;
  if (launched) id = id_of_launch(process);
  if (!launched) expect_ok(__LINE__, ncclGetUniqueId(&id));
  for (int t = 0; t < count; ++t) {
    threads[t] = (struct Thread){.world = {.size = size, .locals = locals},
                                 .id = id,
                                 .body = body,
                                 .removes_id = launched && process == 0 && t == 0};
    for (int l = 0; l < locals; ++l) threads[t].world.ranks[l] = (process * count + t) * locals + l;
  }
  if (locals == size && !launched) {
    expect_ok(__LINE__, ncclCommInitAll(threads[0].world.comms, size, NULL));
  } else if (locals > 1) {
    create_in_group(threads, count);
  }
  for (int t = 0; t < count; ++t)
    expect(__LINE__, pthread_create(&threads[t].thread, NULL, run_thread, &threads[t]) == 0);
  for (int t = 0; t < count; ++t) pthread_join(threads[t].thread, NULL);
  puts("all right");
  return 0;
}
