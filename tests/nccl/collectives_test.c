/* NCCL's collectives and messages over librondo-nccl.so, in host memory: every one, type and operator,
 * out of place and in place. */
#include "tests/nccl/numbers.h"
#include "tests/nccl/world.h"

enum { kMostCount = 70001 };

/* One rank's buffers: room for a block of every rank, and a border that nothing may touch. */
typedef struct {
  unsigned char *in, *out;
  size_t bytes;
} Buffers;

enum { kBorder = 64 };

static Buffers make_buffers(size_t bytes) {
  Buffers b = {.bytes = bytes};
  expect(__LINE__, posix_memalign((void**)&b.in, 4096, bytes + kBorder) == 0 &&
                       posix_memalign((void**)&b.out, 4096, bytes + kBorder) == 0);
  memset(b.in, 0xa5, bytes + kBorder);
  memset(b.out, 0xa5, bytes + kBorder);
  return b;
}

static void free_buffers(Buffers b) {
  for (size_t i = b.bytes; i < b.bytes + kBorder; ++i)
    expect(__LINE__, b.in[i] == 0xa5 && b.out[i] == 0xa5);
  free(b.in);
  free(b.out);
}

/* Inputs whose results are exact in every type and differ if a rank is missing, doubled or misplaced. */
static long input(ncclRedOp_t op, int rank, int size, size_t i) {
  switch (op) {
    case ncclProd:
      return 1 + (long)((size_t)rank + i) % 2;
    case ncclAvg: /* the sum is a multiple of the number of ranks */
      return (long)(i % 2) + (i % (size_t)size == (size_t)rank ? size : 0);
    default:
      return (long)(((size_t)rank + i) % 3);
  }
}

static long result(ncclRedOp_t op, int size, size_t i) {
  long it = input(op, 0, size, i);
  for (int rank = 1; rank < size; ++rank) {
    const long next = input(op, rank, size, i);
    it = op == ncclProd  ? it * next
         : op == ncclMax ? (it > next ? it : next)
         : op == ncclMin ? (it < next ? it : next)
                         : it + next;
  }
  return op == ncclAvg ? it / size : it;
}

/* Whether a float of two or three bits holds a number. */
static int holds(ncclDataType_t type, long value) {
  const int bits = type == ncclFloat8e5m2 ? 3 : type == ncclFloat8e4m3 ? 4 : 0;
  if (bits == 0) return 1;
  while (value >= 1L << bits) {
    if (value % 2 != 0) return 0;
    value /= 2;
  }
  return 1;
}

typedef enum {
  kAllReduce,
  kReduceScatter,
  kReduce,
  kAllGather,
  kBroadcast,
  kGather,
  kScatter,
  kAlltoAll,
  kForms
} Form;

static size_t in_blocks(Form form, int size) {
  return form == kReduceScatter || form == kScatter || form == kAlltoAll ? (size_t)size : 1;
}
static size_t out_blocks(Form form, int size) {
  return form == kAllGather || form == kGather || form == kAlltoAll ? (size_t)size : 1;
}

typedef struct {
  Form form;
  ncclDataType_t type;
  ncclRedOp_t op;
  size_t count;
  int root, in_place, with_config, registered;
} Case;

static ncclResult_t call(const Case* c, const void* in, void* out, ncclComm_t comm) {
  /* In host memory any stream is as good as none. */
  const ncclStream_t stream = c->in_place ? (ncclStream_t)out : NULL;
  ncclCollConfig_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.magic = kNcclMagic;
  config.version = NCCL_VERSION_CODE;
  if (c->with_config) {
    switch (c->form) {
      case kAllReduce:
        return ncclAllReduceConfig(in, out, c->count, c->type, c->op, comm, stream, &config);
      case kReduceScatter:
        return ncclReduceScatterConfig(in, out, c->count, c->type, c->op, comm, stream, &config);
      case kReduce:
        return ncclReduceConfig(in, out, c->count, c->type, c->op, c->root, comm, stream, &config);
      case kAllGather:
        return ncclAllGatherConfig(in, out, c->count, c->type, comm, stream, &config);
      case kBroadcast:
        return ncclBroadcastConfig(in, out, c->count, c->type, c->root, comm, stream, &config);
      case kGather:
        return ncclGatherConfig(in, out, c->count, c->type, c->root, comm, stream, &config);
      case kScatter:
        return ncclScatterConfig(in, out, c->count, c->type, c->root, comm, stream, &config);
      default:
        return ncclAlltoAllConfig(in, out, c->count, c->type, comm, stream, &config);
    }
  }
  switch (c->form) {
    case kAllReduce:
      return ncclAllReduce(in, out, c->count, c->type, c->op, comm, stream);
    case kReduceScatter:
      return ncclReduceScatter(in, out, c->count, c->type, c->op, comm, stream);
    case kReduce:
      return ncclReduce(in, out, c->count, c->type, c->op, c->root, comm, stream);
    case kAllGather:
      return ncclAllGather(in, out, c->count, c->type, comm, stream);
    case kBroadcast:
      return c->in_place ? ncclBcast(out, c->count, c->type, c->root, comm, stream)
                         : ncclBroadcast(in, out, c->count, c->type, c->root, comm, stream);
    case kGather:
      return ncclGather(in, out, c->count, c->type, c->root, comm, stream);
    case kScatter:
      return ncclScatter(in, out, c->count, c->type, c->root, comm, stream);
    default:
      return ncclAlltoAll(in, out, c->count, c->type, comm, stream);
  }
}

static int reduces(Form form) { return form <= kReduce; }

/* What `rank` holds as input at element i of its block for rank `to`; for forms that copy, of the sender. */
static long element(const Case* c, int rank, int to, int size, size_t i) {
  if (reduces(c->form)) return input(c->op, rank, size, (size_t)to * c->count + i);
  return (long)((size_t)rank * 5 + (size_t)to * 3 + i) % 7;
}

static void fill(const Case* c, int rank, int size, unsigned char* in) {
  for (size_t block = 0; block < in_blocks(c->form, size); ++block) {
    for (size_t i = 0; i < c->count; ++i) {
      put(in, c->type, block * c->count + i, element(c, rank, (int)block, size, i));
    }
  }
}

/* The result of element i of block `block` on `rank`. */
static long expected(const Case* c, int rank, int block, int size, size_t i) {
  switch (c->form) {
    case kAllReduce:
    case kReduce:
      return result(c->op, size, i);
    case kReduceScatter:
      return result(c->op, size, (size_t)rank * c->count + i);
    case kBroadcast:
      return element(c, c->root, 0, size, i);
    case kScatter:
      return element(c, c->root, rank, size, i);
    case kAlltoAll:
      return element(c, block, rank, size, i);
    default: /* all-gather and gather */
      return element(c, block, 0, size, i);
  }
}

static int has_result(const Case* c, int rank) {
  return (c->form != kReduce && c->form != kGather) || rank == c->root;
}

static void check(const Case* c, int rank, int size, const unsigned char* out) {
  if (!has_result(c, rank)) return;
  const size_t bytes = size_of_type(c->type);
  unsigned char right[8];
  for (size_t block = 0; block < out_blocks(c->form, size); ++block) {
    for (size_t i = 0; i < c->count; ++i) {
      const long value = expected(c, rank, (int)block, size, i);
      if (!holds(c->type, value)) continue; /* rounding is tested elsewhere */
      put(right, c->type, 0, value);
      if (memcmp(right, out + (block * c->count + i) * bytes, bytes) == 0) continue;
      fprintf(stderr,
              "form %d, type %d, op %d, %zu elements, root %d, in place %d, rank %d of %d: element "
              "%zu of block %zu should be %ld\n",
              (int)c->form, (int)c->type, (int)c->op, c->count, c->root, c->in_place, rank, size, i,
              block, value);
      _exit(1);
    }
  }
}

/* Where the input begins of an operation in place, in the larger of the two buffers. */
static unsigned char* in_place_input(const Case* c, int rank, Buffers b) {
  const size_t block = c->count * size_of_type(c->type);
  const int at_own = c->form == kAllGather || (c->form == kGather && rank == c->root);
  return at_own ? b.out + (size_t)rank * block : b.out;
}

static void run_case(const World* world, const Case* c) {
  Buffers b[kMostRanks];
  unsigned char* out[kMostRanks];
  void* handles[kMostRanks];
  const size_t block = c->count * size_of_type(c->type);
  for (int l = 0; l < world->locals; ++l) {
    b[l] = make_buffers(block * (size_t)world->size);
    out[l] = b[l].out;
    const int rank = world->ranks[l];
    if (c->registered)
      expect_ok(__LINE__, ncclCommRegister(world->comms[l], b[l].out, b[l].bytes, &handles[l]));
    if (!c->in_place) {
      fill(c, rank, world->size, b[l].in);
      continue;
    }
    fill(c, rank, world->size, in_place_input(c, rank, b[l]));
    if (c->form == kReduceScatter || (c->form == kScatter && rank == c->root))
      out[l] += (size_t)rank * block;
  }
  steps_begin(world);
  for (int l = 0; l < world->locals; ++l) {
    const void* in = c->in_place ? in_place_input(c, world->ranks[l], b[l]) : b[l].in;
    /* Other ranks than the root need no second buffer. */
    const int lacks_out =
        (c->form == kReduce || c->form == kGather) && world->ranks[l] != c->root && !c->in_place;
    expect_ok(__LINE__, call(c, in, lacks_out ? NULL : out[l], world->comms[l]));
  }
  steps_end(world);
  for (int l = 0; l < world->locals; ++l) {
    check(c, world->ranks[l], world->size, out[l]);
    if (c->registered) expect_ok(__LINE__, ncclCommDeregister(world->comms[l], handles[l]));
    free_buffers(b[l]);
  }
}

static void every_type_and_operator(World* world) {
  for (int form = 0; form < kForms; ++form) {
    for (int type = 0; type < ncclNumTypes; ++type) {
      for (int op = 0; op < (reduces((Form)form) ? ncclNumOps : 1); ++op) {
        for (int in_place = 0; in_place < 2; ++in_place) {
          const Case c = {.form = (Form)form,
                          .type = (ncclDataType_t)type,
                          .op = (ncclRedOp_t)op,
                          .count = 37,
                          .root = world->size - 1,
                          .in_place = in_place};
          run_case(world, &c);
        }
      }
    }
  }
}

static void sizes_and_roots(World* world) {
  const size_t n = (size_t)world->size;
  const size_t counts[] = {0, 1, n - 1, n, n + 1, 1000, kMostCount};
  for (int form = 0; form < kForms; ++form) {
    for (size_t s = 0; s < sizeof counts / sizeof counts[0]; ++s) {
      for (int in_place = 0; in_place < 2; ++in_place) {
        const Case c = {.form = (Form)form,
                        .type = ncclFloat32,
                        .op = ncclSum,
                        .count = counts[s],
                        .root = (int)s % world->size,
                        .in_place = in_place,
                        .with_config = s % 2 == 0,
                        .registered = s % 3 == 0 && counts[s] != 0};
        run_case(world, &c);
      }
    }
  }
}

/* As NCCL's: the sum wraps before it is divided. */
static void averages_wrap(World* world) {
  uint8_t in = 200, out[kMostRanks];
  int8_t negative = -100, of_negative[kMostRanks];
  expect_ok(__LINE__, ncclGroupStart());
  for (int l = 0; l < world->locals; ++l) {
    ncclComm_t comm = world->comms[l];
    expect_ok(__LINE__, ncclAllReduce(&in, &out[l], 1, ncclUint8, ncclAvg, comm, NULL));
    expect_ok(__LINE__,
              ncclAllReduce(&negative, &of_negative[l], 1, ncclInt8, ncclAvg, comm, NULL));
  }
  expect_ok(__LINE__, ncclGroupEnd());
  for (int l = 0; l < world->locals; ++l) {
    expect(__LINE__, out[l] == (uint8_t)(200 * world->size) / world->size);
    expect(__LINE__, of_negative[l] == (int8_t)(-100 * world->size) / world->size);
  }
}

static void body(World* world) {
  every_type_and_operator(world);
  averages_wrap(world);
  sizes_and_roots(world);
}

int main(int argc, char** argv) { return run(argc, argv, body); }
