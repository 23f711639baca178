/* Groups, operators made at run time, registration, and arguments that are refused, in host memory. */
#include "tests/nccl/numbers.h"
#include "tests/nccl/world.h"

enum { kCount = 1000 };

/* Every rank sends to the next one and receives from the one before, in one group. */
static void ring_of_messages(World* world) {
  const int n = world->size;
  int out[kMostRanks][kCount], in[kMostRanks][kCount];
  expect_ok(__LINE__, ncclGroupStart());
  for (int l = 0; l < world->locals; ++l) {
    const int rank = world->ranks[l], next = (rank + 1) % n, before = (rank + n - 1) % n;
    for (int i = 0; i < kCount; ++i) out[l][i] = 1000 * rank + i;
    expect_ok(__LINE__, ncclSend(out[l], kCount, ncclInt32, next, world->comms[l], NULL));
    expect_ok(__LINE__, ncclRecv(in[l], kCount, ncclInt32, before, world->comms[l], NULL));
  }
  expect_ok(__LINE__, ncclGroupEnd());
  for (int l = 0; l < world->locals; ++l) {
    const int before = (world->ranks[l] + n - 1) % n;
    for (int i = 0; i < kCount; ++i) expect(__LINE__, in[l][i] == 1000 * before + i);
  }
}

/* All to all as nccl-tests does it, messages to oneself included; between its messages a collective. */
static void all_to_all_by_messages(World* world) {
  const int n = world->size;
  int out[kMostRanks][kMostRanks][kCount], in[kMostRanks][kMostRanks][kCount];
  int sum[kMostRanks], one = 1;
  expect_ok(__LINE__, ncclGroupStart());
  for (int l = 0; l < world->locals; ++l) {
    ncclComm_t comm = world->comms[l];
    for (int peer = 0; peer < n; ++peer) {
      for (int i = 0; i < kCount; ++i)
        out[l][peer][i] = 100000 * world->ranks[l] + 10000 * peer + i;
      if (peer == n / 2)
        expect_ok(__LINE__, ncclAllReduce(&one, &sum[l], 1, ncclInt32, ncclSum, comm, NULL));
      expect_ok(__LINE__, ncclSend(out[l][peer], kCount, ncclInt32, peer, comm, NULL));
      expect_ok(__LINE__, ncclRecv(in[l][peer], kCount, ncclInt32, peer, comm, NULL));
    }
  }
  expect_ok(__LINE__, ncclGroupEnd());
  for (int l = 0; l < world->locals; ++l) {
    for (int peer = 0; peer < n; ++peer) {
      for (int i = 0; i < kCount; ++i)
        expect(__LINE__, in[l][peer][i] == 100000 * peer + 10000 * world->ranks[l] + i);
    }
    expect(__LINE__, sum[l] == n);
  }
}

/* Blocks of different sizes: a broadcast from each rank, in one group within a group. */
static void broadcasts_from_all(World* world) {
  const int n = world->size;
  int all[kMostRanks][kMostRanks][kMostRanks] = {{{0}}};
  expect_ok(__LINE__, ncclGroupStart());
  expect_ok(__LINE__, ncclGroupStart());
  for (int l = 0; l < world->locals; ++l) {
    for (int root = 0; root < n; ++root) {
      int* const block = all[l][root];
      if (root == world->ranks[l]) {
        for (int i = 0; i <= root; ++i) block[i] = 10 * root + i + 1;
      }
      expect_ok(__LINE__, ncclBroadcast(block, block, (size_t)root + 1, ncclInt32, root,
                                        world->comms[l], NULL));
    }
  }
  expect_ok(__LINE__, ncclGroupEnd());
  expect_ok(__LINE__, ncclGroupEnd());
  for (int l = 0; l < world->locals; ++l) {
    for (int root = 0; root < n; ++root) {
      for (int i = 0; i < n; ++i)
        expect(__LINE__, all[l][root][i] == (i <= root ? 10 * root + i + 1 : 0));
    }
  }
}

/* Two communicators of the same ranks in one group: the order of their operations does not matter. */
static void two_communicators(World* world) {
  ncclComm_t second[kMostRanks];
  int in[kMostRanks], sums[kMostRanks], most[kMostRanks];
  expect_ok(__LINE__, ncclGroupStart());
  for (int l = 0; l < world->locals; ++l) {
    expect_ok(__LINE__, ncclCommSplit(world->comms[l], 0, world->ranks[l], &second[l], NULL));
  }
  expect_ok(__LINE__, ncclGroupEnd());
  expect_ok(__LINE__, ncclGroupStart());
  for (int l = 0; l < world->locals; ++l) {
    in[l] = world->ranks[l];
    ncclComm_t const order[2] = {world->ranks[l] % 2 == 0 ? world->comms[l] : second[l],
                                 world->ranks[l] % 2 == 0 ? second[l] : world->comms[l]};
    for (int k = 0; k < 2; ++k) {
      const int first = order[k] == world->comms[l];
      expect_ok(__LINE__, ncclAllReduce(&in[l], first ? &sums[l] : &most[l], 1, ncclInt32,
                                        first ? ncclSum : ncclMax, order[k], NULL));
    }
  }
  expect_ok(__LINE__, ncclGroupEnd());
  for (int l = 0; l < world->locals; ++l) {
    expect(__LINE__, sums[l] == world->size * (world->size - 1) / 2 && most[l] == world->size - 1);
    expect_ok(__LINE__, ncclCommDestroy(second[l]));
  }
}

/* A sum of inputs times 3, in every type; and times the rank + 1, which differs between ranks and is
 * written after the operator is made. */
static void scaled_sums(World* world) {
  for (int t = 0; t < ncclNumTypes; ++t) {
    const ncclDataType_t type = (ncclDataType_t)t, other = t == ncclInt32 ? ncclUint32 : ncclInt32;
    const size_t bytes = size_of_type(type);
    const long sums[2] = {3L * world->size, (long)world->size * (world->size + 1) / 2};
    ncclRedOp_t ops[kMostRanks][2];
    unsigned char scalar[8], later[kMostRanks][8], in[8], right[8], out[kMostRanks][2][8];
    put(in, type, 0, 1);
    for (int l = 0; l < world->locals; ++l) {
      put(scalar, type, 0, 3);
      expect_ok(__LINE__, ncclRedOpCreatePreMulSum(&ops[l][0], scalar, type,
                                                   ncclScalarHostImmediate, world->comms[l]));
      expect_ok(__LINE__, ncclRedOpCreatePreMulSum(&ops[l][1], later[l], type, ncclScalarDevice,
                                                   world->comms[l]));
      put(scalar, type, 0, 0);
      put(later[l], type, 0, world->ranks[l] + 1);
      expect(__LINE__, ops[l][0] >= ncclNumOps && ops[l][0] != ops[l][1]);
    }
    for (int k = 0; k < 2; ++k) {
      steps_begin(world);
      for (int l = 0; l < world->locals; ++l)
        expect_ok(__LINE__,
                  ncclAllReduce(in, out[l][k], 1, type, ops[l][k], world->comms[l], NULL));
      steps_end(world);
    }
    for (int l = 0; l < world->locals; ++l) {
      ncclComm_t comm = world->comms[l];
      const int is_small = type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
      for (int k = 0; k < 2 && (!is_small || world->size <= 2); ++k) { /* of at most three bits */
        put(right, type, 0, sums[k]);
        expect(__LINE__, memcmp(right, out[l][k], bytes) == 0);
      }
      expect_error(__LINE__, ncclAllReduce(in, out[l][0], 1, other, ops[l][0], comm, NULL),
                   ncclInvalidArgument, "was made for");
      expect_ok(__LINE__, ncclRedOpDestroy(ops[l][0], comm));
      expect_error(__LINE__, ncclRedOpDestroy(ops[l][0], comm), ncclInvalidArgument, "no operator");
      expect_ok(__LINE__, ncclRedOpDestroy(ops[l][1], comm));
    }
  }
  int64_t much = (INT64_C(1) << 53) + 1;
  ncclRedOp_t op;
  expect_error(
      __LINE__,
      ncclRedOpCreatePreMulSum(&op, &much, ncclInt64, ncclScalarHostImmediate, world->comms[0]),
      ncclInvalidUsage, "beyond 2^53");
}

/* Memory of the library, and pages of the caller's, which stay what they are. */
static void registered(World* world) {
  const size_t bytes = 1 << 20;
  for (int l = 0; l < world->locals; ++l) {
    ncclComm_t comm = world->comms[l];
    void *handle = NULL, *again = NULL, *odd = NULL, *pointer = NULL, *memory = NULL;
    ncclWindow_t window = NULL;
    int* pages = NULL;
    expect(__LINE__, posix_memalign((void**)&pages, 4096, bytes) == 0);
    for (size_t i = 0; i < bytes / sizeof(int); ++i) pages[i] = (int)i;
    expect_ok(__LINE__, ncclCommRegister(comm, pages, bytes, &handle));
    expect_ok(__LINE__, ncclCommWindowRegister(comm, pages, bytes, &window, 1));
    expect_ok(__LINE__, ncclCommRegister(comm, pages + 1, 40, &odd));
    expect_ok(__LINE__, ncclWinGetUserPtr(comm, window, &pointer));
    expect(__LINE__, pointer == pages && handle != (void*)window);
    expect_ok(__LINE__, ncclCommDeregister(comm, handle));
    expect_error(__LINE__, ncclCommDeregister(comm, handle), ncclInvalidArgument,
                 "no such registration");
    expect_ok(__LINE__, ncclCommWindowDeregister(comm, window));
    expect_ok(__LINE__, ncclCommDeregister(comm, odd));
    expect_ok(__LINE__, ncclCommRegister(comm, pages, bytes, &again));
    for (size_t i = 0; i < bytes / sizeof(int); ++i) expect(__LINE__, pages[i] == (int)i);
    expect_ok(__LINE__, ncclCommDeregister(comm, again));
    free(pages);
    expect_ok(__LINE__, ncclMemAlloc(&memory, bytes));
    memset(memory, 1, bytes);
    expect_ok(__LINE__, ncclCommRegister(comm, memory, bytes, &handle));
    expect_ok(__LINE__, ncclCommDeregister(comm, handle));
    expect_ok(__LINE__, ncclMemFree(memory));
    expect_error(__LINE__, ncclMemFree(&handle), ncclInvalidArgument,
                 "not a pointer of ncclMemAlloc");
    expect_ok(__LINE__, ncclMemFree(NULL));
  }
}

/* Nothing of a group with a wrong call runs, and the communicators work on. */
static void refused(World* world) {
  int x = 1, y = 0;
  for (int l = 0; l < world->locals; ++l) {
    ncclComm_t comm = world->comms[l];
    expect_error(__LINE__, ncclAllReduce(NULL, &y, 1, ncclInt32, ncclSum, comm, NULL),
                 ncclInvalidArgument, "null");
    expect_error(__LINE__, ncclAllReduce(&x, &y, 1, (ncclDataType_t)12, ncclSum, comm, NULL),
                 ncclInvalidArgument, "ncclDataType_t 12");
    expect_error(__LINE__, ncclAllReduce(&x, &y, 1, ncclInt32, (ncclRedOp_t)99, comm, NULL),
                 ncclInvalidArgument, "no operator 99");
    expect_error(__LINE__, ncclReduce(&x, &y, 1, ncclInt32, ncclSum, world->size, comm, NULL),
                 ncclInvalidArgument, "root");
    expect_error(__LINE__, ncclSend(&x, 1, ncclInt32, world->size, comm, NULL), ncclInvalidArgument,
                 "rank");
    expect_error(__LINE__, ncclRecv(&x, 1, ncclInt32, -2, comm, NULL), ncclInvalidArgument, "rank");
    expect_error(__LINE__, ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, NULL, NULL),
                 ncclInvalidArgument, "communicator is null");
    expect_error(__LINE__, ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, (ncclComm_t)&x, NULL),
                 ncclInvalidArgument, "no such communicator");
    expect_ok(__LINE__, ncclGroupStart());
    expect_ok(__LINE__, ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, NULL));
    expect_error(__LINE__, ncclAllReduce(&x, &y, 1, (ncclDataType_t)12, ncclSum, comm, NULL),
                 ncclInvalidArgument, "ncclDataType_t 12");
    expect_error(__LINE__, ncclGroupEnd(), ncclInvalidArgument, "ncclDataType_t 12");
    /* What rondo refuses when the group runs, on one communicator and on two. */
    expect_ok(__LINE__, ncclGroupStart());
    expect_ok(__LINE__, ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, comm, NULL));
    expect_ok(__LINE__, ncclReduce(&x, &y, 1, ncclInt32, ncclSum, -1, comm, NULL));
    if (world->locals > 1)
      expect_ok(__LINE__, ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum,
                                        world->comms[(l + 1) % world->locals], NULL));
    expect_error(__LINE__, ncclGroupEnd(), ncclInvalidArgument, "root");
  }
  expect(__LINE__, y == 0);
  expect_error(__LINE__, ncclGroupEnd(), ncclInvalidUsage, "without ncclGroupStart");
  ring_of_messages(world);
}

static void simulated(World* world) {
  int x = 1, y = 0;
  ncclSimInfo_t information = {sizeof information, kNcclSimulationMagic, NCCL_VERSION_CODE, -1};
  expect_ok(__LINE__, ncclGroupStart());
  for (int l = 0; l < world->locals; ++l)
    expect_ok(__LINE__, ncclAllReduce(&x, &y, 1, ncclInt32, ncclSum, world->comms[l], NULL));
  expect_ok(__LINE__, ncclGroupSimulateEnd(&information));
  expect(__LINE__, y == 0 && information.estimatedTime >= 0 && information.estimatedTime < 1e6F);
  information.magic = 0;
  expect_ok(__LINE__, ncclGroupStart());
  expect_error(__LINE__, ncclGroupSimulateEnd(&information), ncclInvalidArgument,
               "NCCL_SIM_INFO_INITIALIZER");
}

static void expect_refused(int line, World* world, ncclCollConfig_t* config, ncclResult_t number,
                           const char* part) {
  int x = 1;
  expect_error(line,
               ncclAllReduceConfig(&x, &x, 1, ncclInt32, ncclSum, world->comms[0], NULL, config),
               number, part);
}

static void configured_calls(World* world) {
  ncclCollConfig_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.magic = kNcclMagic;
  config.version = NCCL_VERSION_CODE;
  config.forceAlgSelection = 1;
  int x[kMostRanks], y[kMostRanks];
  for (int with_ring = 0; with_ring < 2; ++with_ring) {
    config.algSelection = with_ring ? "ring" : "";
    steps_begin(world);
    for (int l = 0; l < world->locals; ++l) {
      x[l] = world->ranks[l];
      expect_ok(__LINE__, ncclAllReduceConfig(&x[l], &y[l], 1, ncclInt32, ncclSum, world->comms[l],
                                              NULL, &config));
    }
    steps_end(world);
    for (int l = 0; l < world->locals; ++l)
      expect(__LINE__, y[l] == world->size * (world->size - 1) / 2);
  }
  config.algSelection = "nvls";
  expect_refused(__LINE__, world, &config, ncclInvalidUsage, "'nvls'");
  config.algSelection = NULL;
  config.launchCompletionEvent = x;
  expect_refused(__LINE__, world, &config, ncclInvalidUsage, "launchCompletionEvent");
  config.magic = 1;
  expect_refused(__LINE__, world, &config, ncclInvalidArgument, "NCCL_COLLCONFIG_INITIALIZER");
}

static void body(World* world) {
  ring_of_messages(world);
  all_to_all_by_messages(world);
  broadcasts_from_all(world);
  two_communicators(world);
  scaled_sums(world);
  registered(world);
  refused(world);
  simulated(world);
  configured_calls(world);
}

int main(int argc, char** argv) { return run(argc, argv, body); }
