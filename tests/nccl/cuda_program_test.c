/* A program in the manner of nccl-tests, for which no GPU has to be there: threads that drive several devices each, with
 * streams, buffers from cudaMalloc and a communicator per device, and which verify what each collective leaves.
 *   PROGRAM THREADS DEVICES   alone, or as one of the processes that rondo-run started
 * Ends with 0 if nothing is wrong, with 3 if elements are, whose number it prints. C99. */
#include "tests/nccl/cuda_abi.h"
#include "tests/nccl/world.h"

enum { kMostCount = 3000 };

static int processes, process, threads, devices, ranks;
static size_t wrong_elements;
static pthread_mutex_t wrong_mutex = PTHREAD_MUTEX_INITIALIZER;

typedef struct {
  int rank;
  ncclComm_t comm;
  cudaStream_t stream;
  int *send, *recv; /* of kMostCount elements for each rank */
} Device;

static void expect_cuda(int line, cudaError_t error) {
  if (error != cudaSuccess) fprintf(stderr, "line %d: CUDA: %s\n", line, cudaGetErrorString(error));
  expect(line, error == cudaSuccess);
}

/* What rank `rank` sends. */
static int element(int rank, size_t index) { return 100000 * rank + (int)index; }
static int sum(size_t index) { return 100000 * (ranks * (ranks - 1) / 2) + ranks * (int)index; }

/* A collective: how many elements are received, in units of the count; how a rank calls it; and what is then in its
 * buffer at an index. */
typedef struct {
  const char* name;
  int receives; /* 0: one for each rank */
  ncclResult_t (*run)(const Device* d, size_t count);
  int (*expected)(int rank, size_t index, size_t count);
} CollectiveCase;

static ncclResult_t all_reduce(const Device* d, size_t count) {
  return ncclAllReduce(d->send, d->recv, count, ncclInt32, ncclSum, d->comm, d->stream);
}
static int of_all_reduce(int rank, size_t index, size_t count) {
  (void)rank, (void)count;
  return sum(index);
}
static ncclResult_t all_gather(const Device* d, size_t count) {
  return ncclAllGather(d->send, d->recv, count, ncclInt32, d->comm, d->stream);
}
static int of_all_gather(int rank, size_t index, size_t count) {
  (void)rank;
  return element((int)(index / count), index % count);
}
static ncclResult_t reduce_scatter(const Device* d, size_t count) {
  return ncclReduceScatter(d->send, d->recv, count, ncclInt32, ncclSum, d->comm, d->stream);
}
static int of_reduce_scatter(int rank, size_t index, size_t count) {
  return sum((size_t)rank * count + index);
}
static ncclResult_t broadcast(const Device* d, size_t count) {
  return ncclBroadcast(d->send, d->recv, count, ncclInt32, ranks - 1, d->comm, d->stream);
}
static int of_broadcast(int rank, size_t index, size_t count) {
  (void)rank, (void)count;
  return element(ranks - 1, index);
}
static ncclResult_t reduce(const Device* d, size_t count) {
  return ncclReduce(d->send, d->recv, count, ncclInt32, ncclSum, ranks - 1, d->comm, d->stream);
}
static int of_reduce(int rank, size_t index, size_t count) {
  (void)count;
  return rank == ranks - 1 ? sum(index) : 0;
}
static ncclResult_t all_to_all(const Device* d, size_t count) {
  expect_ok(__LINE__, ncclGroupStart());
  for (int peer = 0; peer < ranks; ++peer) {
    const size_t place = (size_t)peer * count;
    expect_ok(__LINE__, ncclSend(d->send + place, count, ncclInt32, peer, d->comm, d->stream));
    expect_ok(__LINE__, ncclRecv(d->recv + place, count, ncclInt32, peer, d->comm, d->stream));
  }
  return ncclGroupEnd();
}
static int of_all_to_all(int rank, size_t index, size_t count) {
  return element((int)(index / count), (size_t)rank * count + index % count);
}
static ncclResult_t ring(const Device* d, size_t count) {
  expect_ok(__LINE__, ncclGroupStart());
  expect_ok(__LINE__,
            ncclSend(d->send, count, ncclInt32, (d->rank + 1) % ranks, d->comm, d->stream));
  expect_ok(__LINE__,
            ncclRecv(d->recv, count, ncclInt32, (d->rank + ranks - 1) % ranks, d->comm, d->stream));
  return ncclGroupEnd();
}
static int of_ring(int rank, size_t index, size_t count) {
  (void)count;
  return element((rank + ranks - 1) % ranks, index);
}
static ncclResult_t scatter(const Device* d, size_t count) {
  return ncclScatter(d->send, d->recv, count, ncclInt32, 0, d->comm, d->stream);
}
static int of_scatter(int rank, size_t index, size_t count) {
  return element(0, (size_t)rank * count + index);
}
static ncclResult_t gather(const Device* d, size_t count) {
  return ncclGather(d->send, d->recv, count, ncclInt32, 0, d->comm, d->stream);
}
static int of_gather(int rank, size_t index, size_t count) {
  return rank == 0 ? of_all_gather(rank, index, count) : 0;
}

static const CollectiveCase kCases[] = {
    {"all_reduce", 1, all_reduce, of_all_reduce},
    {"all_gather", 0, all_gather, of_all_gather},
    {"reduce_scatter", 1, reduce_scatter, of_reduce_scatter},
    {"broadcast", 1, broadcast, of_broadcast},
    {"reduce", 1, reduce, of_reduce},
    {"all_to_all", 0, all_to_all, of_all_to_all},
    {"ring", 1, ring, of_ring},
    {"scatter", 1, scatter, of_scatter},
    {"gather", 0, gather, of_gather},
};

/* As nccl-tests wait: the stream is asked, and the communicator for an error. */
static void wait_for(const Device* d) {
  const double limit_s = now_s() + kLimitSeconds;
  cudaError_t state;
  while ((state = cudaStreamQuery(d->stream)) == cudaErrorNotReady) {
    ncclResult_t failure = ncclSuccess;
    expect_ok(__LINE__, ncclCommGetAsyncError(d->comm, &failure));
    expect_ok(__LINE__, failure);
    pause_until(limit_s, "a stream does not end");
  }
  expect_cuda(__LINE__, state);
}

static void verify(const Device* d, const CollectiveCase* it, size_t count) {
  const size_t received = count * (size_t)(it->receives == 0 ? ranks : it->receives);
  int* host = NULL;
  size_t wrong = 0;
  expect_cuda(__LINE__, cudaHostAlloc((void**)&host, received * sizeof *host, 0));
  expect_cuda(__LINE__, cudaMemcpyAsync(host, d->recv, received * sizeof *host,
                                        cudaMemcpyDeviceToHost, d->stream));
  expect_cuda(__LINE__, cudaDeviceSynchronize());
  for (size_t i = 0; i < received; ++i) wrong += host[i] != it->expected(d->rank, i, count);
  expect_cuda(__LINE__, cudaFreeHost(host));
  if (wrong == 0) return;
  printf("%s of %zu: rank %d has %zu wrong elements\n", it->name, count, d->rank, wrong);
  pthread_mutex_lock(&wrong_mutex);
  wrong_elements += wrong;
  pthread_mutex_unlock(&wrong_mutex);
}

/* One collective on all devices of a thread, twice in one group. */
static void run_case(Device* all, const CollectiveCase* it, size_t count) {
  const size_t bytes = (size_t)ranks * kMostCount * sizeof(int);
  for (int i = 0; i < devices; ++i) expect_cuda(__LINE__, cudaMemset(all[i].recv, 0, bytes));
  for (int again = 0; again < 2; ++again) {
    if (devices > 1) expect_ok(__LINE__, ncclGroupStart());
    for (int i = 0; i < devices; ++i) expect_ok(__LINE__, it->run(&all[i], count));
    if (devices > 1) expect_ok(__LINE__, ncclGroupEnd());
  }
  for (int i = 0; i < devices; ++i) wait_for(&all[i]);
  for (int i = 0; i < devices; ++i) verify(&all[i], it, count);
}

static void prepare(Device* d) {
  const size_t elements = (size_t)ranks * kMostCount, bytes = elements * sizeof(int);
  int* host = malloc(bytes);
  for (size_t i = 0; i < elements; ++i) host[i] = element(d->rank, i);
  expect_cuda(__LINE__, cudaSetDevice(d->rank));
  expect_cuda(__LINE__, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
  expect_cuda(__LINE__, cudaMalloc((void**)&d->send, bytes));
  expect_cuda(__LINE__, cudaMalloc((void**)&d->recv, bytes));
  expect_cuda(__LINE__, cudaMemcpy(d->send, host, bytes, cudaMemcpyHostToDevice));
  free(host);
}

static void* run_thread_of_devices(void* argument) {
  static const size_t kCounts[] = {1, 63, kMostCount};
  Device* const all = argument;
  float ms = -1;
  cudaEvent_t begin, end;
  void* handles[kMostRanks];
  expect_cuda(__LINE__, cudaEventCreate(&begin));
  expect_cuda(__LINE__, cudaEventCreate(&end));
  expect_cuda(__LINE__, cudaEventRecord(begin, all[0].stream));
  for (int registered = 0; registered < 2; ++registered) {
    const size_t bytes = (size_t)ranks * kMostCount * sizeof(int);
    for (int i = 0; registered && i < devices; ++i)
      expect_ok(__LINE__, ncclCommRegister(all[i].comm, all[i].recv, bytes, &handles[i]));
    for (size_t c = 0; c < sizeof kCases / sizeof *kCases; ++c) {
      for (size_t k = 0; k < sizeof kCounts / sizeof *kCounts; ++k)
        run_case(all, &kCases[c], kCounts[k]);
    }
    for (int i = 0; registered && i < devices; ++i)
      expect_ok(__LINE__, ncclCommDeregister(all[i].comm, handles[i]));
  }
  expect_cuda(__LINE__, cudaEventRecord(end, all[0].stream));
  expect_cuda(__LINE__, cudaEventElapsedTime(&ms, begin, end));
  expect(__LINE__, ms > 0);
  expect_cuda(__LINE__, cudaEventDestroy(begin));
  expect_cuda(__LINE__, cudaEventDestroy(end));
  return NULL;
}

/* All communicators of the process by its main thread, in one group. */
static void create_communicators(Device* all) {
  ncclUniqueId id;
  if (processes == 1) expect_ok(__LINE__, ncclGetUniqueId(&id));
  if (processes > 1) id = id_of_launch(process);
  expect_ok(__LINE__, ncclGroupStart());
  for (int i = 0; i < threads * devices; ++i)
    expect_ok(__LINE__, ncclCommInitRank(&all[i].comm, ranks, id, all[i].rank));
  expect_ok(__LINE__, ncclGroupEnd());
  if (processes > 1 && process == 0) forget_id_of_launch();
}

/* What the stand-in does not do, it refuses, and a kernel's name is in the sentence. */
static void stand_in_refuses(void) {
  int count = 0, major = 0;
  cudaDeviceProp properties;
  cudaGraph_t graph = NULL;
  cudaKernel_t kernel = NULL;
  const cudaDim3 one = {1, 1, 1};
  static char host_function;
  expect_cuda(__LINE__, cudaGetDeviceCount(&count));
  expect_cuda(__LINE__, cudaGetDeviceProperties(&properties, count - 1));
  expect(__LINE__, properties.totalGlobalMem > 0 && strstr(properties.name, "stand-in") != NULL);
  expect(__LINE__, cudaGetDeviceProperties(&properties, count) == cudaErrorInvalidDevice);
  expect(__LINE__, cudaSetDevice(count) == cudaErrorInvalidDevice);
  expect_cuda(__LINE__, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  expect(__LINE__, major >= 9);
  expect(__LINE__, cudaStreamBeginCapture(NULL, 0) == cudaErrorNotSupported);
  expect(__LINE__, cudaStreamEndCapture(NULL, &graph) == cudaErrorNotSupported);
  void** const handle = __cudaRegisterFatBinary(NULL);
  __cudaRegisterFunction(handle, &host_function, &host_function, "_Z6doublePi", -1, NULL, NULL,
                         NULL, NULL, NULL);
  __cudaRegisterFatBinaryEnd(handle);
  expect_cuda(__LINE__, cudaStreamQuery(NULL));
  expect_cuda(__LINE__, __cudaGetKernel(&kernel, &host_function));
  expect(__LINE__, __cudaLaunchKernel(kernel, one, one, NULL, 0, NULL) == cudaErrorNotSupported);
  expect(__LINE__, cudaStreamQuery(NULL) == cudaErrorNotSupported);
  expect(__LINE__, cudaDeviceSynchronize() == cudaErrorNotSupported);
  __cudaUnregisterFatBinary(handle);
}

int main(int argc, char** argv) {
  static Device all[kMostRanks];
  pthread_t started[kMostRanks];
  expect(__LINE__, argc == 3);
  alarm(kLimitSeconds);
  setenv("RONDO_NCCL_HOST", "1", 1);
  threads = atoi(argv[1]);
  devices = atoi(argv[2]);
  processes = getenv("WORLD_SIZE") == NULL ? 1 : from_environment("WORLD_SIZE");
  process = processes == 1 ? 0 : from_environment("RANK");
  ranks = processes * threads * devices;
  expect(__LINE__, ranks >= 1 && ranks <= kMostRanks);
  for (int i = 0; i < threads * devices; ++i) {
    all[i].rank = process * threads * devices + i;
    prepare(&all[i]);
  }
  create_communicators(all);
  for (int t = 0; t < threads; ++t)
    expect(__LINE__,
           pthread_create(&started[t], NULL, run_thread_of_devices, &all[t * devices]) == 0);
  for (int t = 0; t < threads; ++t) pthread_join(started[t], NULL);
  for (int i = 0; i < threads * devices; ++i) {
    expect_ok(__LINE__, ncclCommDestroy(all[i].comm));
    expect_cuda(__LINE__, cudaFree(all[i].send));
    expect_cuda(__LINE__, cudaFree(all[i].recv));
  }
  stand_in_refuses();
  expect_cuda(__LINE__, cudaDeviceReset());
  if (wrong_elements != 0) {
    printf("%zu wrong elements\n", wrong_elements);
    return 3;
  }
  puts("all right");
  return 0;
}
