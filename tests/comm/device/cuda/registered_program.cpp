// Processes that register memory of their GPUs with each other: cudaMalloc's, and mapped memory, as
// PyTorch's expandable segments are. `rondo-run -n 2 -- registered_processes_cuda_test`; 77: no GPU is here.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "rondo/rondo.hpp"
#include "transport/cuda_ipc/driver.hpp"

namespace rondo::device::test {
namespace {

using transport::cuda_ipc::driver_status;
using transport::cuda_ipc::find_driver_function;

constexpr size_t kCount = 300'001;  // a part for each rank, of which no two are alike
constexpr size_t kBytes = size_t{4} << 20;

Status checked(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return {Code::kSystem, std::string(what) + ": " + cudaGetErrorString(code)};
}

/// kBytes of two pieces, side by side, that can be exported as descriptors. Never freed.
Result<void*> map_memory(int device) {
  const auto granularity = find_driver_function<decltype(&cuMemGetAllocationGranularity)>(
      "cuMemGetAllocationGranularity");
  const auto create = find_driver_function<decltype(&cuMemCreate)>("cuMemCreate");
  const auto reserve = find_driver_function<decltype(&cuMemAddressReserve)>("cuMemAddressReserve");
  const auto map = find_driver_function<decltype(&cuMemMap)>("cuMemMap");
  const auto allow = find_driver_function<decltype(&cuMemSetAccess)>("cuMemSetAccess");
  if (!granularity || !create || !reserve || !map || !allow) {
    return Status(Code::kUnavailable, "the driver has no mapped memory");
  }
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  size_t least = 0;
  RONDO_TRY(driver_status(granularity(&least, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                          "the granularity of mapped memory"));
  constexpr size_t kPiece = kBytes / 2;
  if (kPiece % least != 0) {
    return Status(Code::kUnavailable, "pieces have " + std::to_string(least) + " bytes here");
  }
  CUdeviceptr start = 0;
  RONDO_TRY(driver_status(reserve(&start, kBytes, 0, 0, 0), "reserving addresses"));
  for (CUdeviceptr at = start; at < start + kBytes; at += kPiece) {
    CUmemGenericAllocationHandle handle{};
    RONDO_TRY(driver_status(create(&handle, kPiece, &properties, 0), "creating memory"));
    RONDO_TRY(driver_status(map(at, kPiece, 0, handle, 0), "mapping memory"));
  }
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  RONDO_TRY(driver_status(allow(start, kBytes, &access, 1), "getting access to memory"));
  return reinterpret_cast<void*>(start);  // NOLINT: the driver's pointers are numbers
}

class Rank {
 public:
  Rank(Communicator& world, cudaStream_t stream) : world_(world), stream_(stream) {}

  /// Sums in `memory` while it is registered, launched and replayed, and when it no longer is.
  Status use(const char* what, void* memory) {
    values_ = static_cast<float*>(memory);
    RONDO_TRY(world_.register_device_memory(memory, kBytes));
    const auto enqueue_direct = [&] { return enqueue(Algorithm::kTwoShotDirect); };
    RONDO_TRY(sum(what, enqueue_direct));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replayed = nullptr;
    RONDO_TRY(
        checked(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture"));
    const Status enqueued = enqueue_direct();
    RONDO_TRY(checked(cudaStreamEndCapture(stream_, &graph), "capture"));
    RONDO_TRY(enqueued);
    RONDO_TRY(checked(cudaGraphInstantiate(&replayed, graph, 0), "cudaGraphInstantiate"));
    for (int replay = 0; replay < 3; ++replay) {
      RONDO_TRY(sum(what, [&] { return checked(cudaGraphLaunch(replayed, stream_), "a replay"); }));
    }
    RONDO_TRY(world_.unregister_device_memory(memory));
    RONDO_TRY(world_.barrier({.stream = stream_}));
    RONDO_TRY(
        sum(what, [&] { return enqueue(Algorithm::kAuto); }));  // through slots, as the replay
    return sum(what, [&] { return checked(cudaGraphLaunch(replayed, stream_), "a replay"); });
  }

 private:
  Status enqueue(Algorithm algorithm) {
    return world_.all_reduce(values_, values_, kCount, DataType::kFloat32, ReduceOp::kSum,
                             {.algorithm = algorithm, .stream = stream_});
  }
  static float value_of(int rank, int turn, size_t i) {
    return static_cast<float>((i + static_cast<size_t>(rank * 7 + turn)) % 1024);
  }

  /// In the order of the stream: it does not wait for others.
  Status copy(float* to, const float* from) const {
    constexpr size_t kUsed = kCount * sizeof(float);
    RONDO_TRY(checked(cudaMemcpyAsync(to, from, kUsed, cudaMemcpyDefault, stream_), "a copy"));
    return checked(cudaStreamSynchronize(stream_), "waiting for a copy");
  }

  template <class Enqueue>
  Status sum(const char* what, const Enqueue& enqueue) {
    std::vector<float> values(kCount);
    ++turn_;
    for (size_t i = 0; i < kCount; ++i) values[i] = value_of(world_.rank(), turn_, i);
    RONDO_TRY(copy(values_, values.data()));
    RONDO_TRY(enqueue());
    RONDO_TRY(checked(cudaStreamSynchronize(stream_), "waiting for a sum"));
    RONDO_TRY(world_.status());
    RONDO_TRY(copy(values.data(), values_));
    for (size_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (int rank = 0; rank < world_.size(); ++rank) expected += value_of(rank, turn_, i);
      if (values[i] == expected) continue;
      return {Code::kDataError, std::string(what) + ": sum " + std::to_string(turn_) +
                                    ", element " + std::to_string(i) + " is " +
                                    std::to_string(values[i]) + " instead of " +
                                    std::to_string(expected)};
    }
    return {};
  }

  Communicator& world_;
  const cudaStream_t stream_;
  float* values_ = nullptr;
  int turn_ = 0;
};

Status run(int gpus) {
  const auto place = RONDO_TRY(place_from_launcher()).value_or(Place());
  Config config;
  config.device = place.local_rank % gpus;
  config.stall_timeout = std::chrono::seconds(20);
  auto world = RONDO_TRY(Communicator::create(config));
  RONDO_TRY(checked(cudaSetDevice(world.device()), "cudaSetDevice"));
  cudaStream_t stream = nullptr;
  RONDO_TRY(checked(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  Rank rank(world, stream);
  void* const allocated = RONDO_TRY(device_alloc(kBytes, world.device()));
  RONDO_TRY(rank.use("allocated memory", allocated));
  void* const mapped = RONDO_TRY(map_memory(world.device()));
  RONDO_TRY(rank.use("mapped memory", mapped));
  std::printf("rank %d of %d: all sums are right, in allocated and in mapped memory\n",
              world.rank(), world.size());
  return {};
}

}  // namespace
}  // namespace rondo::device::test

int main() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: no CUDA device\n");
    return 77;
  }
  const rondo::Status status = rondo::device::test::run(gpus);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
