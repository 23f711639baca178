/* What the C tests share: expectations that end the process, and ranks as forked processes. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rondo/rondo.h"

enum { kRanks = 3, kLimitSeconds = 60 };

static int rank = -1; /* -1: the test's own process */

static inline void expect(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "rank %d: %s (last error: %s)\n", rank, what, rondo_last_error());
  exit(1);
}

static inline void expect_ok(rondo_code code, const char* what) { expect(code == RONDO_OK, what); }

/* The call has failed with this code, and its text holds `part`. */
static inline void expect_error(rondo_code code, rondo_code wanted, const char* part) {
  expect(code == wanted, rondo_code_name(wanted));
  expect(strstr(rondo_last_error(), part) != NULL, part);
}

static inline void expect_refused(rondo_code code, const char* part) {
  expect_error(code, RONDO_INVALID_ARGUMENT, part);
}

/* Waits for what an asynchronous call began; a blocking one (no work) has ended. */
static inline void finish(rondo_code code, rondo_work** begun, int is_asynchronous,
                          const char* what) {
  rondo_work* work = *begun;
  *begun = NULL;
  expect_ok(code, what);
  expect((work != NULL) == is_asynchronous, "a work only of an asynchronous call");
  if (work != NULL) expect_ok(rondo_work_wait(work), what);
  rondo_work_release(work);
}

static inline rondo_config config_of(int its_rank, int size) {
  rondo_config config;
  rondo_config_init(&config, sizeof config);
  config.rank = its_rank;
  config.world_size = size;
  config.bootstrap_timeout_ms = 30000;
  config.stall_timeout_ms = 30000;
  return config;
}

/* A communicator of this process alone. */
static inline rondo_communicator* create_alone(void) {
  rondo_communicator* alone = NULL;
  const rondo_config config = config_of(0, 1);
  expect_ok(rondo_create(&alone, &config), "create");
  return alone;
}

/* Runs body(id) in kRanks processes. */
static inline void run_ranks(void (*body)(const rondo_unique_id*), const rondo_unique_id* id) {
  pid_t children[kRanks];
  int failed = 0;
  for (int r = 0; r < kRanks; ++r) {
    children[r] = fork();
    expect(children[r] >= 0, "fork");
    if (children[r] == 0) {
      rank = r;
      alarm(kLimitSeconds);
      body(id);
      exit(0);
    }
  }
  for (int r = 0; r < kRanks; ++r) {
    int status = 0;
    expect(waitpid(children[r], &status, 0) == children[r], "waitpid");
    if (status != 0) failed = 1;
  }
  expect(!failed, "a rank failed");
}
