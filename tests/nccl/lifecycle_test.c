/* Communicators from their creation to their end: every kind of init, configs of older and newer headers,
 * split, shrink, grow, revoke, abort, and the death of a rank, in host memory. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/nccl/world.h"

enum { kRanks = 3 };

/* What forked ranks share. */
typedef struct {
  ncclUniqueId id, second_id;
  volatile int ready[kMostRanks], told[kMostRanks];
} Shared;
static Shared* shared;

typedef void (*Rank)(int rank);

/* Runs `rank` in so many processes; all but those of `killed` (a mask) have to end well. */
static void fork_ranks(int ranks, unsigned killed, Rank rank) {
  pid_t children[kMostRanks];
  memset(shared, 0, sizeof *shared);
  fflush(NULL);
  for (int r = 0; r < ranks; ++r) {
    children[r] = fork();
    expect(__LINE__, children[r] >= 0);
    if (children[r] == 0) {
      alarm(kLimitSeconds);
      rank(r);
      _exit(0);
    }
  }
  for (int r = 0; r < ranks; ++r) {
    int status = 0;
    expect(__LINE__, waitpid(children[r], &status, 0) == children[r]);
    const int well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!well && (killed >> r & 1U) == 0)
      fprintf(stderr, "rank %d ended with status %d\n", r, status);
    expect(__LINE__, (killed >> r & 1U) != 0 ? WIFSIGNALED(status) : well);
  }
}

static void announce(int rank) { __atomic_store_n(&shared->ready[rank], 1, __ATOMIC_RELEASE); }

static void await(int rank) {
  const double limit_s = now_s() + kLimitSeconds;
  while (!__atomic_load_n(&shared->ready[rank], __ATOMIC_ACQUIRE))
    pause_until(limit_s, "a rank does not come");
}

/* A communicator of the forked ranks. The id is shared by `ready` of a rank beyond them. */
static ncclComm_t join(int rank, int ranks) {
  ncclComm_t comm = NULL;
  if (rank == 0) {
    expect_ok(__LINE__, ncclGetUniqueId(&shared->id));
    announce(kMostRanks - 1);
  }
  await(kMostRanks - 1);
  expect_ok(__LINE__, ncclCommInitRank(&comm, ranks, shared->id, rank));
  return comm;
}

static void expect_sum(int line, ncclComm_t comm, int wanted_ranks) {
  int one = 1, sum = 0, count = 0;
  expect_ok(line, ncclCommCount(comm, &count));
  expect_ok(line, ncclAllReduce(&one, &sum, 1, ncclInt32, ncclSum, comm, NULL));
  expect(line, count == wanted_ranks && sum == wanted_ranks);
}

/* A sum fails, because of what `part` names. */
static void expect_no_sum(int line, ncclComm_t comm, ncclResult_t number, const char* part) {
  int x = 1;
  expect_error(line, ncclAllReduce(&x, &x, 1, ncclInt32, ncclSum, comm, NULL), number, part);
}

static void expect_rank(int line, ncclComm_t comm, int wanted) {
  int rank = -1;
  expect_ok(line, ncclCommUserRank(comm, &rank));
  expect(line, rank == wanted);
}

/* ---- configs */

/* Of a header that knows so many bytes: what it sets in no field, padding too, is 0x55. */
static ncclConfig_t config_of(size_t size, unsigned version) {
  ncclConfig_t config;
  memset(&config, 0x55, sizeof config);
  config.cgaClusterSize = config.minCTAs = config.maxCTAs = config.splitShare = config.shrinkShare =
      NCCL_CONFIG_UNDEF_INT;
  if (size < sizeof config) memset((char*)&config + size, 0x55, sizeof config - size);
  config.size = size;
  config.magic = kNcclMagic;
  config.version = version;
  config.blocking = 1;
  return config;
}

static ncclResult_t init_alone(ncclConfig_t* config, ncclComm_t* comm) {
  ncclUniqueId id;
  expect_ok(__LINE__, ncclGetUniqueId(&id));
  return ncclCommInitRankConfig(comm, 1, id, 0, config);
}

/* A struct that is longer than this library's, as a newer header's. */
typedef struct {
  ncclConfig_t known;
  long more[4];
} NewerConfig;

static void configs(void) {
  ncclComm_t comm = NULL;
  /* 2.14: only `blocking`, and four bytes of padding after it. */
  ncclConfig_t config = config_of(offsetof(ncclConfig_t, minCTAs), 21400);
  config.cgaClusterSize = 0x55555555; /* that padding */
  expect_ok(__LINE__, init_alone(&config, &comm));
  expect_ok(__LINE__, ncclCommDestroy(comm));
  config = config_of(offsetof(ncclConfig_t, splitShare), 21700); /* up to netName */
  expect_ok(__LINE__, init_alone(&config, &comm));
  expect_ok(__LINE__, ncclCommDestroy(comm));
  config.maxCTAs = 0;
  expect_error(__LINE__, init_alone(&config, &comm), ncclInvalidArgument, "maxCTAs is 0");
  NewerConfig newer;
  newer.known = config_of(sizeof newer, 30000);
  newer.known.commName = "configured";
  expect_ok(__LINE__, init_alone(&newer.known, &comm));
  expect_ok(__LINE__, ncclCommDestroy(comm));
  newer.known.blocking = 2;
  expect_error(__LINE__, init_alone(&newer.known, &comm), ncclInvalidArgument, "blocking is 2");
  newer.known.magic = 0;
  expect_error(__LINE__, init_alone(&newer.known, &comm), ncclInvalidArgument,
               "NCCL_CONFIG_INITIALIZER");
}

/* ---- one process */

static void not_blocking(void) {
  ncclUniqueId id;
  ncclComm_t comms[2] = {NULL, NULL};
  ncclResult_t state = ncclInProgress;
  ncclConfig_t config = config_of(offsetof(ncclConfig_t, collnetEnable), 22500);
  config.commName = "names of ranks need not agree";
  config.blocking = 0;
  expect_ok(__LINE__, ncclGetUniqueId(&id));
  /* Alone, the first waits for the second, so it cannot be there. */
  expect(__LINE__, ncclCommInitRankConfig(&comms[0], 2, id, 0, &config) == ncclInProgress);
  expect_ok(__LINE__, ncclCommGetAsyncError(comms[0], &state));
  expect(__LINE__, state == ncclInProgress);
  int count = 0;
  expect_no_sum(__LINE__, comms[0], ncclInvalidArgument, "still being created");
  expect_error(__LINE__, ncclCommCount(comms[0], &count), ncclInvalidArgument,
               "still being created");
  config.commName = "other";
  expect(__LINE__, ncclCommInitRankConfig(&comms[1], 2, id, 1, &config) == ncclInProgress);
  const double limit_s = now_s() + kLimitSeconds;
  for (int i = 0; i < 2; ++i) {
    while (ncclCommGetAsyncError(comms[i], &state) == ncclSuccess && state == ncclInProgress)
      pause_until(limit_s, "it is not created");
    expect(__LINE__, state == ncclSuccess);
    expect_rank(__LINE__, comms[i], i);
  }
  for (int i = 0; i < 2; ++i) expect_ok(__LINE__, ncclCommDestroy(comms[i]));
  /* One that is never complete can be left. */
  expect_ok(__LINE__, ncclGetUniqueId(&id));
  expect(__LINE__, ncclCommInitRankConfig(&comms[0], 2, id, 0, &config) == ncclInProgress);
  expect_ok(__LINE__, ncclCommAbort(comms[0]));
  expect_error(__LINE__, ncclCommAbort(comms[0]), ncclInvalidArgument, "no such communicator");
}

static void inits_in_a_group(void) {
  ncclUniqueId ids[2];
  ncclComm_t comms[kRanks];
  expect_ok(__LINE__, ncclGetUniqueId(&ids[0]));
  expect_ok(__LINE__, ncclGetUniqueId(&ids[1]));
  expect_ok(__LINE__, ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    expect_ok(__LINE__, ncclCommInitRankScalable(&comms[rank], kRanks, rank, 2, ids, NULL));
    expect(__LINE__, comms[rank] != NULL);
  }
  expect_ok(__LINE__, ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    ncclCommProperties_t properties = {
        .size = sizeof properties, .magic = kNcclMagic, .version = NCCL_VERSION_CODE};
    int device = 7;
    uint64_t bytes = 0;
    expect_rank(__LINE__, comms[rank], rank);
    expect_ok(__LINE__, ncclCommCuDevice(comms[rank], &device));
    expect_ok(__LINE__, ncclCommQueryProperties(comms[rank], &properties));
    expect_ok(__LINE__, ncclCommMemStats(comms[rank], ncclStatGpuMemTotal, &bytes));
    expect(__LINE__, device == -1 && properties.rank == rank && properties.nRanks == kRanks &&
                         !properties.deviceApiSupport && bytes > 0);
    const ncclTeam_t world = ncclTeamWorld(comms[rank]), alone = ncclTeamLsa(comms[rank]);
    expect(__LINE__, world.nRanks == kRanks && world.rank == rank && alone.nRanks == 1 &&
                         ncclTeamRankToWorld(comms[rank], alone, 0) == rank);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    expect_ok(__LINE__, ncclCommFinalize(comms[rank]));
    expect_no_sum(__LINE__, comms[rank], ncclInvalidUsage, "finalized");
    expect_ok(__LINE__, ncclCommDestroy(comms[rank]));
    expect_error(__LINE__, ncclCommDestroy(comms[rank]), ncclInvalidArgument,
                 "no such communicator");
  }
  expect_ok(__LINE__, ncclCommDestroy(NULL));
}

/* Without a driver every kind of init says the same. */
static void without_a_gpu(void) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  char said[1000];
  setenv("RONDO_NCCL_HOST", "0", 1);
  expect_ok(__LINE__, ncclGetUniqueId(&id));
  const ncclResult_t result = ncclCommInitRank(&comm, 1, id, 0);
  if (result == ncclSuccess) {
    expect_ok(__LINE__, ncclCommDestroy(comm));
  } else {
    snprintf(said, sizeof said, "%s", ncclGetLastError(NULL));
    expect_error(__LINE__, ncclCommInitAll(&comm, 1, NULL), result, said);
    expect(__LINE__, strstr(said, "no CUDA driver") == NULL || strstr(said, "RONDO_NCCL_HOST=1"));
  }
  setenv("RONDO_NCCL_HOST", "1", 1);
}

/* An id that was not broadcast. */
static void empty_ids(void) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  const char* const said = "the unique id is empty: broadcast rank 0's";
  memset(&id, 0, sizeof id);
  setenv("RANK", "0", 1); /* a launcher's place to meet */
  setenv("WORLD_SIZE", "1", 1);
  expect_error(__LINE__, ncclCommInitRank(&comm, 1, id, 0), ncclInvalidArgument, said);
  expect_error(__LINE__, ncclCommInitRankConfig(&comm, 1, id, 0, NULL), ncclInvalidArgument, said);
  expect_error(__LINE__, ncclCommInitRankScalable(&comm, 1, 0, 1, &id, NULL), ncclInvalidArgument,
               said);
  expect_error(__LINE__, ncclCommGrow(NULL, 1, &id, 0, &comm, NULL), ncclInvalidArgument, said);
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
}

static void wrong_inits(void) {
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  int version = 0;
  expect_ok(__LINE__, ncclGetVersion(&version));
  expect(__LINE__, version == NCCL_VERSION_CODE);
  expect_error(__LINE__, ncclGetVersion(NULL), ncclInvalidArgument, "null");
  expect_ok(__LINE__, ncclGetUniqueId(&id));
  expect_error(__LINE__, ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank 2 of 2");
  expect_error(__LINE__, ncclCommInitRank(NULL, 2, id, 0), ncclInvalidArgument, "null");
  memset(&id, 'x', sizeof id);
  expect_error(__LINE__, ncclCommInitRank(&comm, 1, id, 0), ncclInvalidArgument, "unique_id");
  expect_error(__LINE__, ncclCommInitRankScalable(&comm, 1, 0, 0, &id, NULL), ncclInvalidArgument,
               "0 ids");
  expect_error(__LINE__, ncclCommInitAll(&comm, 0, NULL), ncclInvalidArgument, "rank 0 of 0");
  setenv("RONDO_NCCL_HOST", "yes", 1);
  expect_error(__LINE__, ncclCommInitAll(&comm, 1, NULL), ncclInvalidArgument,
               "RONDO_NCCL_HOST is 'yes'");
  setenv("RONDO_NCCL_HOST", "1", 1);
  expect(__LINE__, strlen(ncclGetErrorString(ncclRemoteError)) > 0 &&
                       strlen(ncclGetErrorString((ncclResult_t)99)) > 0);
  expect_error(__LINE__, ncclSignal(0, 0, 0, 0, NULL, NULL), ncclInvalidUsage,
               "ncclSignal: rondo has no one-sided messages");
  expect_error(__LINE__, ncclDevCommCreate(NULL, NULL, NULL), ncclInvalidUsage, "device API");
  expect_error(__LINE__, ncclParamBind(NULL, "NCCL_ALGO"), ncclInvalidUsage, "parameters");
  expect_error(__LINE__, ncclCommSuspend(NULL, 1), ncclInvalidUsage, "ncclCommSuspend");
  ncclEncryptionConfig_t encryption = {sizeof encryption, kNcclMagic, NCCL_VERSION_CODE, 0, NULL};
  expect_ok(__LINE__, ncclSetEncryption(&encryption));
  encryption.mode = 1;
  expect_error(__LINE__, ncclSetEncryption(&encryption), ncclInvalidUsage, "does not encrypt");
}

/* ---- several processes */

static void splits(int rank) {
  ncclComm_t comm = join(rank, kRanks), part = NULL;
  /* The highest ranks first, without rank 1. */
  ncclConfig_t config = config_of(offsetof(ncclConfig_t, collnetEnable), 22500);
  config.commName = rank == 0 ? "one name" : "another";
  expect_ok(__LINE__,
            ncclCommSplit(comm, rank == 1 ? NCCL_SPLIT_NOCOLOR : 0, -rank, &part, &config));
  expect(__LINE__, (part == NULL) == (rank == 1));
  if (part != NULL) {
    expect_rank(__LINE__, part, rank == 0 ? 1 : 0);
    expect_sum(__LINE__, part, 2);
    expect_ok(__LINE__, ncclCommDestroy(part));
  }
  expect_error(__LINE__, ncclCommSplit(comm, -3, 0, &part, NULL), ncclInvalidArgument,
               "color is -3");
  expect_sum(__LINE__, comm, kRanks);
  expect_ok(__LINE__, ncclCommDestroy(comm));
}

/* The communicator of ranks 0 and 2. */
static ncclComm_t without_rank_1(ncclComm_t comm, int rank, int flags) {
  ncclComm_t left = NULL;
  int excluded[1] = {1};
  expect_ok(__LINE__, ncclCommShrink(comm, excluded, 1, &left, NULL, flags));
  expect_rank(__LINE__, left, rank / 2);
  expect_sum(__LINE__, left, 2);
  return left;
}

static void shrinks_and_grows(int rank) {
  ncclComm_t comm = join(rank, kRanks), left = NULL, grown = NULL;
  int itself[1] = {rank};
  expect_error(__LINE__, ncclCommShrink(comm, itself, 1, &left, NULL, NCCL_SHRINK_DEFAULT),
               ncclInvalidArgument, "excludes itself");
  /* Rank 1 joins again as the last one; rank 2, not the lowest, brings the id. */
  if (rank != 1) {
    left = without_rank_1(comm, rank, NCCL_SHRINK_DEFAULT);
    expect_error(__LINE__, ncclCommGrow(left, kRanks, NULL, -1, &grown, NULL), ncclInvalidArgument,
                 "the unique id is empty");
  }
  if (rank == 2) {
    expect_ok(__LINE__, ncclCommGetUniqueId(left, &shared->second_id));
    announce(5);
  }
  await(5);
  const ncclUniqueId id = shared->second_id;
  if (rank == 1) {
    expect_ok(__LINE__, ncclCommGrow(NULL, kRanks, &id, 2, &grown, NULL));
  } else {
    expect_ok(__LINE__, ncclCommGrow(left, kRanks, rank == 2 ? &id : NULL, -1, &grown, NULL));
    expect_ok(__LINE__, ncclCommDestroy(left));
  }
  expect_rank(__LINE__, grown, rank == 0 ? 0 : rank == 1 ? 2 : 1);
  expect_sum(__LINE__, grown, kRanks);
  expect_sum(__LINE__, comm, kRanks);
  expect_ok(__LINE__, ncclCommDestroy(grown));
  expect_ok(__LINE__, ncclCommDestroy(comm));
}

/* Rank 1 is killed while the others wait for it in a collective. A thread of rank 0 sees that from outside. */
static ncclComm_t watched;

static void* watch(void* unused) {
  ncclResult_t state = ncclSuccess;
  const double limit_s = now_s() + kLimitSeconds;
  while (ncclCommGetAsyncError(watched, &state) == ncclSuccess && state == ncclSuccess)
    pause_until(limit_s, "nobody says that rank 1 is dead");
  expect(__LINE__, state == ncclRemoteError && strstr(ncclGetLastError(watched), "rank 1") != NULL);
  return unused;
}

static void killed(int rank) {
  ncclComm_t comm = join(rank, kRanks);
  pthread_t thread;
  expect_sum(__LINE__, comm, kRanks);
  if (rank == 1) {
    await(0);
    kill(getpid(), SIGKILL);
  }
  watched = comm;
  if (rank == 0) expect(__LINE__, pthread_create(&thread, NULL, watch, NULL) == 0);
  if (rank == 0) announce(0);
  await(0);
  const double begun_s = now_s();
  expect_no_sum(__LINE__, comm, ncclRemoteError, "rank 1");
  expect(__LINE__, now_s() - begun_s < 20);
  if (rank == 0) pthread_join(thread, NULL);
  expect_no_sum(__LINE__, comm, ncclRemoteError, "rank 1");
  expect_ok(__LINE__, ncclCommDestroy(without_rank_1(comm, rank, NCCL_SHRINK_ABORT)));
  expect_ok(__LINE__, ncclCommAbort(comm));
}

/* Rank 1 is killed. One of the others shrinks before anybody has noticed, the other one notices first. */
static void killed_before_a_shrink(int rank, int first) {
  ncclComm_t comm = join(rank, kRanks);
  expect_sum(__LINE__, comm, kRanks);
  if (rank == 1) kill(getpid(), SIGKILL);
  if (rank == first) {
    announce(first);
  } else {
    await(first);
    expect_no_sum(__LINE__, comm, ncclRemoteError, "rank 1");
  }
  expect_ok(__LINE__, ncclCommDestroy(without_rank_1(comm, rank, NCCL_SHRINK_DEFAULT)));
  expect_ok(__LINE__, ncclCommAbort(comm));
}

static void killed_lowest_shrinks_first(int rank) { killed_before_a_shrink(rank, 0); }
static void killed_lowest_notices_first(int rank) { killed_before_a_shrink(rank, 2); }

/* Rank 0 is in no call and leaves; the others, which wait for it, learn who left. */
static void abort_beside_waiting(int rank) {
  ncclComm_t comm = join(rank, kRanks);
  expect_sum(__LINE__, comm, kRanks);
  if (rank == 0) {
    await(1);
    await(2);
    expect_ok(__LINE__, ncclCommAbort(comm));
    return;
  }
  announce(rank);
  expect_no_sum(__LINE__, comm, ncclRemoteError, "rank 0");
  expect_ok(__LINE__, ncclCommDestroy(comm));
}

/* Another thread ends the call in which rank 0 waits for rank 1, which never comes. */
static void* abort_soon(void* comm) {
  await(0);
  expect_ok(__LINE__, ncclCommAbort((ncclComm_t)comm));
  announce(2);
  return NULL;
}

static void abort_own_call(int rank) {
  ncclComm_t comm = join(rank, 2);
  int x = 1;
  if (rank == 0) {
    pthread_t thread;
    expect(__LINE__, pthread_create(&thread, NULL, abort_soon, comm) == 0);
    announce(0);
    expect_error(__LINE__, ncclRecv(&x, 1, ncclInt32, 1, comm, NULL), ncclRemoteError,
                 "ncclCommAbort");
    pthread_join(thread, NULL);
    return;
  }
  await(2);
  expect_error(__LINE__, ncclSend(&x, 1, ncclInt32, 0, comm, NULL), ncclRemoteError, "rank 0");
  expect_ok(__LINE__, ncclCommDestroy(comm));
}

/* Ranks that disagree are told both calls. */
static void disagree(int rank) {
  ncclComm_t comm = join(rank, 2);
  int x[2] = {1, 1};
  expect_error(__LINE__, ncclAllReduce(x, x, rank == 0 ? 1 : 2, ncclInt32, ncclSum, comm, NULL),
               ncclInvalidUsage, "rank 1");
  expect_ok(__LINE__, ncclCommAbort(comm));
}

/* After a revocation a communicator can be split, not used. */
static void revokes(int rank) {
  ncclComm_t comm = join(rank, kRanks), same = NULL;
  ncclResult_t state = ncclInProgress;
  expect_sum(__LINE__, comm, kRanks);
  announce(rank); /* a revocation also ends a call that is not over on every rank */
  for (int other = 1; rank == 0 && other < kRanks; ++other) await(other);
  if (rank != 0) expect_no_sum(__LINE__, comm, ncclRemoteError, "ncclCommRevoke");
  expect_error(__LINE__, ncclCommRevoke(comm, 1), ncclInvalidArgument, "flags");
  expect_ok(__LINE__, ncclCommRevoke(comm, 0));
  expect_ok(__LINE__, ncclCommGetAsyncError(comm, &state));
  expect(__LINE__, state == ncclSuccess);
  expect_error(__LINE__, ncclCommFinalize(comm), ncclInvalidUsage, "revoked");
  expect_no_sum(__LINE__, comm, ncclRemoteError, "ncclCommRevoke");
  expect_ok(__LINE__, ncclCommSplit(comm, 0, rank, &same, NULL));
  expect_sum(__LINE__, same, kRanks);
  expect_ok(__LINE__, ncclCommDestroy(same));
  expect_ok(__LINE__, ncclCommDestroy(comm));
}

static void one_process(int rank) {
  (void)rank;
  configs();
  wrong_inits();
  empty_ids();
  without_a_gpu();
  not_blocking();
  inits_in_a_group();
}

int main(void) {
  setenv("RONDO_NCCL_HOST", "1", 1);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect(__LINE__, shared != MAP_FAILED);
  static const struct {
    const char* name;
    int ranks;
    unsigned killed;
    Rank rank;
  } cases[] = {
      {"one process", 1, 0, one_process},
      {"splits", kRanks, 0, splits},
      {"shrinks and grows", kRanks, 0, shrinks_and_grows},
      {"killed", kRanks, 1U << 1, killed},
      {"killed before a shrink, of rank 0 first", kRanks, 1U << 1, killed_lowest_shrinks_first},
      {"killed before a shrink, of rank 2 first", kRanks, 1U << 1, killed_lowest_notices_first},
      {"abort beside waiting ranks", kRanks, 0, abort_beside_waiting},
      {"abort of one's own call", 2, 0, abort_own_call},
      {"disagree", 2, 0, disagree},
      {"revokes", kRanks, 0, revokes}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    printf("%s\n", cases[i].name);
    fork_ranks(cases[i].ranks, cases[i].killed, cases[i].rank);
  }
  return 0;
}
