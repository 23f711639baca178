// Calls NCCL's collectives as any program does: on a stream, from the rank's thread. What NCCL
// lacks is refused, not emulated.
#include "bench/backends/nccl.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bench/backends/cuda_memory.hpp"

namespace rondo::bench {
namespace {

constexpr int kSharesGpus = 23000;  // NCCL's version from which ranks may share a GPU

Status to_status(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return {};
  return {Code::kSystem,
          std::string(call) + ": " + ncclGetErrorString(code) + ": " + ncclGetLastError(nullptr)};
}

std::optional<ncclDataType_t> type_of(DataType type) {
  constexpr auto kNone = ncclNumTypes;
  constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclFloat64,    ncclFloat16,   ncclBfloat16,
                                       ncclInt32,   ncclInt64,      ncclUint8,     ncclInt8,
                                       kNone,       kNone,          ncclUint32,    ncclUint64,
                                       kNone,       ncclFloat8e4m3, ncclFloat8e5m2};
  static_assert(std::size(kTypes) == kDataTypes);  // by DataType
  const ncclDataType_t found = kTypes[static_cast<size_t>(type)];
  return found == kNone ? std::nullopt : std::optional(found);
}

std::optional<ncclRedOp_t> op_of(ReduceOp op) {
  constexpr ncclRedOp_t kOps[] = {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg};  // by ReduceOp
  const auto index = static_cast<size_t>(op);
  return index < std::size(kOps) ? std::optional(kOps[index]) : std::nullopt;
}

bool has(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kAllGather || collective == Collective::kBroadcast ||
         collective == Collective::kReduce;
}

std::string library_name() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

class NcclBackend final : public Backend {
 public:
  explicit NcclBackend(std::unique_ptr<CudaMemory> memory) : memory_(std::move(memory)) {}
  ~NcclBackend() override {
    if (comm_ != nullptr) (void)ncclCommDestroy(comm_);
  }
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;

  /// Call once, before anything else.
  Status connect(int rank, int ranks, const ncclUniqueId& id) {
    rank_ = rank;
    ranks_ = ranks;
    // Allocated now, because allocating later can wait for kernels that wait for this rank.
    exchanged_ = memory_->allocate(kExchangeBytes);
    if (exchanged_ == nullptr) return {Code::kResourceExhausted, "no memory on this GPU"};
    return to_status(ncclCommInitRank(&comm_, ranks, id, rank), "ncclCommInitRank");
  }

  std::string name() const override { return library_name(); }
  int rank() const override { return rank_; }
  int size() const override { return ranks_; }

  Status supports(const CallShape& shape) const override {
    if (!has(shape.collective)) {
      return {Code::kUnavailable,
              "NCCL is measured at all_reduce, reduce_scatter, all_gather, broadcast and reduce "
              "only, not " +
                  std::string(name_of(shape.collective))};
    }
    if (!type_of(shape.type)) {
      return {Code::kUnavailable, "NCCL has no type for " + std::string(rondo::name(shape.type))};
    }
    if (reduces(shape.collective) && shape.op == ReduceOp::kMulSum) {
      return {Code::kUnavailable,
              "NCCL's scaled sums, operators made for a factor, are not measured"};
    }
    if (reduces(shape.collective) && !op_of(shape.op)) {
      return {Code::kUnavailable, "NCCL has no operator for " + std::string(rondo::name(shape.op))};
    }
    return {};
  }

  /// NCCL has no barrier: a sum of one number, whatever its value.
  Status barrier() override {
    std::byte* const there = memory_->twin(exchanged_);
    RONDO_TRY(to_status(ncclAllReduce(there, there, 1, ncclInt32, ncclSum, comm_, stream()),
                        "ncclAllReduce"));
    return memory_->synchronize();
  }

  Status run(const BackendCall& operation) override {
    if (!operation.measured) return exchange(operation);
    RONDO_TRY(enqueue(operation, memory_->twin(operation.in), memory_->twin(operation.out)));
    return memory_->synchronize();
  }

  Result<double> time(const BackendCall& operation, size_t iterations) override {
    const void* const in = memory_->twin(operation.in);
    void* const out = memory_->twin(operation.out);
    auto took = memory_->time([&]() -> Status {
      for (size_t i = 0; i < iterations; ++i) RONDO_TRY(enqueue(operation, in, out));
      return {};
    });
    if (!took.ok()) return took;
    return *took / static_cast<double>(iterations);
  }

  void* allocate(size_t bytes) override { return memory_->allocate(bytes); }
  void release(void* memory) override { memory_->release(memory); }
  bool is_on_host() const override { return false; }
  Status give(const void* memory, size_t bytes) override {
    return bytes > 0 ? memory_->give(memory_->twin(memory), memory, bytes) : Status();
  }
  Status take(void* memory, size_t bytes) override {
    return bytes > 0 ? memory_->take(memory, memory_->twin(memory), bytes) : Status();
  }
  Result<Mismatch> compare(const void* found, const void* expected, size_t count,
                           DataType type) override {
    return memory_->compare(memory_->twin(found), memory_->twin(expected), count, size_of(type));
  }

 private:
  static constexpr size_t kExchangeBytes = size_t{4} << 20;

  cudaStream_t stream() const { return static_cast<cudaStream_t>(memory_->stream()); }

  Status enqueue(const BackendCall& operation, const void* in, void* out) {
    const CallShape& shape = operation.shape;
    const ncclDataType_t type = type_of(shape.type).value_or(ncclFloat32);
    const ncclRedOp_t op = op_of(shape.op).value_or(ncclSum);
    const size_t count = shape.count;
    switch (shape.collective) {
      case Collective::kAllReduce:
        return to_status(ncclAllReduce(in, out, count, type, op, comm_, stream()), "ncclAllReduce");
      case Collective::kReduceScatter:
        return to_status(ncclReduceScatter(in, out, count, type, op, comm_, stream()),
                         "ncclReduceScatter");
      case Collective::kAllGather:
        return to_status(ncclAllGather(in, out, count, type, comm_, stream()), "ncclAllGather");
      case Collective::kBroadcast:
        return to_status(ncclBroadcast(in, out, count, type, shape.root, comm_, stream()),
                         "ncclBroadcast");
      case Collective::kReduce:
        return to_status(ncclReduce(in, out, count, type, op, shape.root, comm_, stream()),
                         "ncclReduce");
      default:
        return supports(shape);
    }
  }

  /// The harness's own exchange: a few numbers, in memory of any kind.
  Status exchange(const BackendCall& operation) {
    const size_t element = size_of(operation.shape.type);
    const size_t in_bytes = in_elements(operation.shape, ranks_) * element;
    const size_t out_bytes = out_elements(operation.shape, ranks_) * element;
    if (in_bytes + out_bytes > kExchangeBytes) {
      return {Code::kResourceExhausted, "more than ranks can tell each other here"};
    }
    std::byte* const in = memory_->twin(exchanged_);
    std::byte* const out = in + in_bytes;
    RONDO_TRY(memory_->give(in, operation.in, in_bytes));
    RONDO_TRY(enqueue(operation, in, out));
    return memory_->take(operation.out, out, out_bytes);
  }

  std::unique_ptr<CudaMemory> memory_;
  void* exchanged_ = nullptr;  // freed with memory_
  ncclComm_t comm_ = nullptr;
  int rank_ = 0, ranks_ = 1;
};

class Process final : public NcclWorld {
 public:
  Process(int ranks, const ncclUniqueId& id) : ranks_(ranks), id_(id) {}
  Result<std::unique_ptr<Backend>> make_backend(int rank) override {
    auto memory = RONDO_TRY(open_cuda_memory(rank));
    auto backend = std::make_unique<NcclBackend>(std::move(memory));
    RONDO_TRY(backend->connect(rank, ranks_, id_));
    return std::unique_ptr<Backend>(std::move(backend));
  }

 private:
  int ranks_;
  ncclUniqueId id_;
};

}  // namespace

Result<int> gpus_for_nccl() {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code == cudaSuccess && devices > 0) return devices;
  return Status(
      Code::kUnavailable,
      std::string("there is no GPU here, and NCCL has no other "
                  "memory: ") +
          cudaGetErrorString(code) +
          (code == cudaErrorInsufficientDriver ? ": install NVIDIA's driver, or a newer one" : ""));
}

Status check_nccl_ranks(int ranks, int gpus) {
  if (ranks <= gpus) return {};
  int version = 0;
  RONDO_TRY(to_status(ncclGetVersion(&version), "ncclGetVersion"));
  const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (version >= kSharesGpus && shared != nullptr && std::string_view(shared) == "1") return {};
  return {Code::kInvalidArgument,
          "--ranks means " + std::to_string(ranks) + " ranks, but " + library_name() +
              " has one rank per GPU; GPUs here: " + std::to_string(gpus) +
              ". From NCCL 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1 allows more"};
}

Result<std::unique_ptr<NcclWorld>> make_nccl_world(int ranks) {
  ncclUniqueId id;
  RONDO_TRY(to_status(ncclGetUniqueId(&id), "ncclGetUniqueId"));
  return std::unique_ptr<NcclWorld>(std::make_unique<Process>(ranks, id));
}

}  // namespace rondo::bench
