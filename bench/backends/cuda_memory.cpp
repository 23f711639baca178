#include "bench/backends/cuda_memory.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "bench/backends/mismatch_kernel.hpp"

namespace rondo::bench {
namespace {

Status status_of(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return {Code::kSystem, std::string(what) + ": " + cudaGetErrorString(code)};
}

class Runtime final : public CudaMemory {
 public:
  ~Runtime() override {
    drop_graph();
    (void)cudaFree(mismatch_);
    for (const auto& [memory, piece] : pieces_) {
      (void)cudaFree(piece.twin);
      std::free(memory);
    }
    for (const cudaEvent_t event : {begin_, end_, marks_[0], marks_[1]}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  Status open(int device) {
    device_ = device;
    RONDO_TRY(status_of(cudaSetDevice(device), "choosing a device"));
    RONDO_TRY(
        status_of(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
    // Done now, because loading a kernel or allocating memory later could wait for kernels that
    // wait for this rank.
    cudaFuncAttributes loaded{};
    RONDO_TRY(status_of(cudaFuncGetAttributes(&loaded, mismatch_kernel()), "loading a kernel"));
    RONDO_TRY(status_of(cudaMalloc(&mismatch_, sizeof(Mismatch)), "taking memory"));
    for (cudaEvent_t* const event : {&begin_, &end_, &marks_[0], &marks_[1]}) {
      RONDO_TRY(status_of(cudaEventCreate(event), "creating an event"));
    }
    return {};
  }

  int device() const override { return device_; }
  void* stream() const override { return stream_; }

  void* allocate(size_t bytes) override {
    Twin piece{.twin = nullptr, .bytes = bytes};
    if (cudaMalloc(&piece.twin, bytes) != cudaSuccess) {
      (void)cudaGetLastError();  // or a later call would be blamed
      return nullptr;
    }
    void* const memory = std::malloc(bytes);
    if (memory == nullptr) {
      (void)cudaFree(piece.twin);
      return nullptr;
    }
    pieces_[static_cast<std::byte*>(memory)] = piece;
    return memory;
  }
  void release(void* memory) override {
    const auto found = pieces_.find(static_cast<std::byte*>(memory));
    if (found == pieces_.end()) return;
    (void)cudaFree(found->second.twin);
    std::free(memory);
    pieces_.erase(found);
  }
  std::byte* twin(const void* memory) const override {
    auto* const at = static_cast<std::byte*>(const_cast<void*>(memory));
    auto found = pieces_.upper_bound(at);
    if (found == pieces_.begin()) return nullptr;
    --found;
    const auto offset = static_cast<size_t>(at - found->first);
    if (offset >= found->second.bytes) return nullptr;
    return static_cast<std::byte*>(found->second.twin) + offset;
  }

  Status give(std::byte* to, const void* memory, size_t bytes) override {
    return copy(to, memory, bytes);
  }
  Status take(void* memory, const std::byte* from, size_t bytes) override {
    return copy(memory, from, bytes);
  }
  Status synchronize() override {
    return status_of(cudaStreamSynchronize(stream_), "waiting for a stream");
  }

  Result<Mismatch> compare(const std::byte* found, const std::byte* expected, size_t count,
                           size_t element_bytes) override {
    Mismatch mismatch;
    RONDO_TRY(copy(mismatch_, &mismatch, sizeof(mismatch)));
    void* arguments[] = {&found, &expected, &count, &element_bytes, &mismatch_};
    const cudaError_t code = cudaLaunchKernel(mismatch_kernel(), dim3(kMismatchBlocks),
                                              dim3(kMismatchThreads), arguments, 0, stream_);
    RONDO_TRY(status_of(code, "comparing"));
    RONDO_TRY(copy(&mismatch, mismatch_, sizeof(mismatch)));
    return mismatch;
  }

  Result<double> time(const std::function<Status()>& enqueue) override {
    RONDO_TRY(status_of(cudaEventRecord(begin_, stream_), "recording an event"));
    RONDO_TRY(enqueue());
    RONDO_TRY(status_of(cudaEventRecord(end_, stream_), "recording an event"));
    RONDO_TRY(synchronize());
    float ms = 0;
    RONDO_TRY(status_of(cudaEventElapsedTime(&ms, begin_, end_), "reading the time"));
    return ms * 1e3;
  }

  Status capture(const std::function<Status()>& enqueue) override {
    drop_graph();
    // Other ranks of the process may be capturing at the same time.
    const cudaError_t begun = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    RONDO_TRY(status_of(begun, "capturing a graph"));
    Status status = enqueue();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (status.ok()) status = status_of(ended, "capturing a graph");
    if (status.ok()) {
      status = status_of(cudaGraphInstantiate(&replayed_, graph, 0), "making a graph");
    }
    if (status.ok()) status = status_of(cudaGraphUpload(replayed_, stream_), "uploading a graph");
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    return status.ok() ? synchronize() : status;
  }
  /// CUDA takes some thousand launches, and then holds the caller up inside, perhaps with a lock that
  /// another rank's thread needs for the launch that this one waits for. So it waits here before.
  Status replay() override {
    if (++replays_ % kMarkEvery == 0) {
      const cudaEvent_t mark = marks_[replays_ / kMarkEvery % 2];  // of the last time but one
      cudaError_t code = cudaEventQuery(mark);
      for (; code == cudaErrorNotReady; code = cudaEventQuery(mark)) std::this_thread::yield();
      RONDO_TRY(status_of(code, "waiting for an event"));
      RONDO_TRY(status_of(cudaEventRecord(mark, stream_), "recording an event"));
    }
    return status_of(cudaGraphLaunch(replayed_, stream_), "replaying a graph");
  }

 private:
  static constexpr unsigned kMismatchBlocks = 512;  // a few for each multiprocessor
  static constexpr uint64_t kMarkEvery = 8;         // at most three times as many replays are ahead

  struct Twin {
    void* twin;
    size_t bytes;
  };

  Status copy(void* to, const void* from, size_t bytes) {
    // The host's memory is pageable: a copy to it behind a kernel could hold CUDA up inside, with a
    // lock that another rank's thread needs for the launch that the kernel waits for.
    RONDO_TRY(synchronize());
    const cudaError_t code = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_);
    RONDO_TRY(status_of(code, "copying"));
    return synchronize();
  }

  void drop_graph() {
    if (replayed_ != nullptr) (void)cudaGraphExecDestroy(replayed_);
    replayed_ = nullptr;
  }

  int device_ = 0;
  void* mismatch_ = nullptr;  // a Mismatch on the device
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  cudaEvent_t marks_[2] = {};  // in turn, before every kMarkEvery-th replay
  uint64_t replays_ = 0;
  cudaGraphExec_t replayed_ = nullptr;
  std::map<std::byte*, Twin> pieces_;
};

}  // namespace

Result<std::unique_ptr<CudaMemory>> open_cuda_memory(int local_rank) {
  int devices = 0;
  const cudaError_t code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess || devices == 0) {
    const bool driver_lacks = code == cudaErrorInsufficientDriver;  // or is too old
    return Status(Code::kUnavailable,
                  std::string("--device cuda: there is no GPU here: ") + cudaGetErrorString(code) +
                      (driver_lacks ? ": install NVIDIA's driver or a newer one, or" : ":") +
                      " leave out --device cuda");
  }
  auto memory = std::make_unique<Runtime>();
  RONDO_TRY(memory->open(local_rank % devices));
  return std::unique_ptr<CudaMemory>(std::move(memory));
}

}  // namespace rondo::bench
