// Ranks as streams of one GPU, for tests: memory on the device, launches of the walk's kernel, and
// a wait that does not last for ever.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "comm/device/cuda_engine.hpp"
#include "tests/comm/device/device_calls.hpp"
#include "tests/harness/catch.hpp"
#include "transport/cuda_ipc/cuda_calls.hpp"

namespace rondo::engine::test {

using transport::cuda_ipc::CudaCalls;
using transport::cuda_ipc::Stream;

inline constexpr uint64_t kLimitNs = 10'000'000'000;

inline void must(cudaError_t code) {
  if (code != cudaSuccess) FAIL(cudaGetErrorString(code));
}
inline void must(const Status& status) {
  if (!status.ok()) FAIL(status.to_string());
}
template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

inline CudaCalls& cuda() {
  static const std::unique_ptr<CudaCalls> kCalls = [] {
    // Streams share so many queues, in which one rank's kernel would wait behind another's.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    auto calls = must(transport::cuda_ipc::open_cuda());
    must(calls->set_device(0));
    must(calls->load(walk_kernel()));
    must(calls->load(walk_ll_kernel()));
    return calls;
  }();
  return *kCalls;
}

/// Device memory, handed out piece by piece and freed as a whole.
class Pool {
 public:
  explicit Pool(size_t bytes) : base_(must(cuda().allocate(bytes))), bytes_(bytes) {
    must(cuda().clear(base_, bytes, nullptr));
  }
  ~Pool() { (void)cuda().release(base_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::byte* take(size_t bytes) {
    std::byte* const piece = base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > bytes_) FAIL("the test's pool of device memory is too small");
    return piece;
  }
  template <class T>
  T* upload(std::span<const T> values) {
    std::byte* const piece = take(values.size_bytes());
    if (!values.empty()) {
      must(cuda().copy(piece, std::as_bytes(values).data(), values.size_bytes(), nullptr));
    }
    return reinterpret_cast<T*>(piece);
  }

 private:
  std::byte* base_;
  size_t bytes_, used_ = 0;
};

/// What the host and all kernels see at the same address.
struct Mapped {
  uint64_t aborts[kMaxDeviceRanks];
  DeviceReport reports[kMaxDeviceRanks][32];  // [rank][channel]
};

class GpuWorld {
 public:
  explicit GpuWorld(const transport::cuda_ipc::SegmentSizes& shape, size_t pool_bytes = 256 << 20)
      : shape_(shape),
        pool_(pool_bytes),
        mapped_(reinterpret_cast<Mapped*>(must(cuda().allocate_mapped(sizeof(Mapped))))) {
    std::memset(static_cast<void*>(mapped_), 0, sizeof(Mapped));
    const size_t bytes = transport::cuda_ipc::SegmentLayout(shape).bytes();
    for (uint32_t r = 0; r < shape.ranks; ++r) {
      segments_.push_back(pool_.take(bytes));
      streams_.push_back(must(cuda().create_stream()));
    }
  }
  ~GpuWorld() {
    for (const Stream stream : streams_) (void)cuda().destroy_stream(stream);
    (void)cuda().release_mapped(reinterpret_cast<std::byte*>(mapped_));
  }
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

  const DeviceReport& report(uint32_t rank, uint32_t channel) const {
    return mapped_->reports[rank][channel];
  }
  /// No channel of any rank has given up.
  bool all_well() const {
    for (uint32_t r = 0; r < shape_.ranks; ++r) {
      for (uint32_t c = 0; c < shape_.channels; ++c) {
        if (report(r, c).ended != DeviceReport::kNot) return false;
      }
    }
    return true;
  }

  /// Raises every rank's abort word.
  void abort() {
    for (uint64_t& abort : mapped_->aborts) *const_cast<volatile uint64_t*>(&abort) = 1;
  }

  /// All operations in a row on the streams of `ranks`, launches[operation][rank]; results are in
  /// the launches' memory afterwards. `replays`: as a graph, so often.
  void walk(std::vector<std::vector<Launch>> launches, const std::vector<uint32_t>& ranks,
            int replays = 0) {
    std::vector<std::vector<std::byte*>> memory(launches.size());  // [operation][rank]
    for (size_t i = 0; i < launches.size(); ++i) {
      for (Launch& launch : launches[i]) memory[i].push_back(move_to_device(launch));
    }
    must(cuda().synchronize(nullptr));
    if (replays == 0) {
      // Operation by operation: a stream takes about a thousand launches, and then the host waits.
      for (const std::vector<Launch>& of_ranks : launches) {
        for (const uint32_t rank : ranks) launch(rank, of_ranks[rank]);
      }
      wait_for(ranks);
    } else {
      replay(ranks, replays, launches);
    }
    for (size_t i = 0; i < launches.size(); ++i) {
      for (size_t rank = 0; rank < launches[i].size(); ++rank) {
        const std::span<std::byte> host = launches[i][rank].memory;
        must(cuda().copy(host.data(), memory[i][rank], host.size(), nullptr));
      }
    }
    must(cuda().synchronize(nullptr));
  }

  /// A group of each rank.
  void walk(const std::vector<DeviceGroup>& groups, int blocks) {
    must(cuda().synchronize(nullptr));
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
      launch(rank, groups[rank], blocks);
      ranks.push_back(rank);
    }
    wait_for(ranks);
  }
  Pool& pool() { return pool_; }

 private:
  /// Uploads all that an operation points to, and points it there. Returns where its memory is.
  std::byte* move_to_device(Launch& launch) {
    DeviceOperation& operation = launch.operation;
    std::byte* const memory = pool_.upload<std::byte>(launch.memory);
    operation.in = memory + (operation.in - launch.memory.data());
    operation.out = memory + (operation.out - launch.memory.data());
    operation.program.operands =
        pool_.upload(std::span(operation.program.operands, operation.program.operand_count));
    operation.program.instructions = pool_.upload(
        std::span(operation.program.instructions, operation.program.instruction_count));
    operation.geometries = pool_.upload(std::span(operation.geometries, launch.channels));
    return memory;
  }

  void launch(uint32_t rank, const Launch& launch) {
    if (launch.channels == 0) return;
    DeviceGroup group;
    group.operation_count = 1;
    group.operations[0] = launch.operation;
    group.operations[0].limit_ns = std::min(launch.operation.limit_ns, kLimitNs);
    this->launch(rank, group, static_cast<int>(launch.channels));
  }

  void launch(uint32_t rank, DeviceGroup group, int blocks) {
    DeviceLinks links = {.shape = shape_,
                         .rank = rank,
                         .one_gpu = true,
                         .host_abort = &mapped_->aborts[rank],
                         .reports = mapped_->reports[rank],
                         .segments = {}};
    std::copy(segments_.begin(), segments_.end(), links.segments);
    void* arguments[] = {&links, &group};
    const bool only_ll = goes_by_ll(group);
    must(cuda().launch({.kernel = only_ll ? walk_ll_kernel() : walk_kernel(),
                        .blocks = blocks,
                        .threads = only_ll ? kLlWalkThreads : kWalkThreads,
                        .shared_bytes = 0,
                        .arguments = arguments,
                        .stream = streams_[rank]}));
  }

  /// All operations of a rank as a graph, each rank's its own, as programs have them: nothing says
  /// that branches of one graph run side by side.
  void replay(const std::vector<uint32_t>& ranks, int replays,
              const std::vector<std::vector<Launch>>& launches) {
    std::vector<cudaGraphExec_t> graphs(shape_.ranks);
    for (const uint32_t rank : ranks) {
      auto* const stream = static_cast<cudaStream_t>(streams_[rank]);
      must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (const std::vector<Launch>& of_ranks : launches) launch(rank, of_ranks[rank]);
      cudaGraph_t graph{};
      must(cudaStreamEndCapture(stream, &graph));
      must(cudaGraphInstantiate(&graphs[rank], graph, 0));
      must(cudaGraphDestroy(graph));
      // Now: it may wait for kernels that run.
      must(cudaGraphUpload(graphs[rank], stream));
    }
    wait_for(ranks);
    for (int i = 0; i < replays; ++i) {
      for (const uint32_t rank : ranks) {
        must(cudaGraphLaunch(graphs[rank], static_cast<cudaStream_t>(streams_[rank])));
      }
    }
    wait_for(ranks);
    for (const uint32_t rank : ranks) must(cudaGraphExecDestroy(graphs[rank]));
  }

  void wait_for(const std::vector<uint32_t>& ranks) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point give_up = Clock::now() + std::chrono::seconds(60);
    const Clock::time_point hangs = give_up + std::chrono::seconds(30);
    bool gave_up = false;
    for (const uint32_t rank : ranks) {
      while (!must(cuda().is_done(streams_[rank]))) {
        if (!gave_up && Clock::now() > give_up) {
          gave_up = true;
          abort();
        }
        // Freeing the memory of a kernel that runs would wait for it for ever.
        RONDO_CHECK(Clock::now() < hangs, "rank %u's kernel does not end", rank);
        std::this_thread::yield();
      }
    }
    if (gave_up) FAIL("kernels did not end within a minute, and were stopped");
  }

  transport::cuda_ipc::SegmentSizes shape_;
  Pool pool_;
  Mapped* mapped_;
  std::vector<std::byte*> segments_;
  std::vector<Stream> streams_;
};

}  // namespace rondo::engine::test
