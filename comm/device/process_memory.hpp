// Memory that outlives a rank of a device communicator, because peers' kernels may still touch it.
// All ranks of a process own it together; it is freed after the last of them has released it and
// the ranks of other processes no longer use it.
//
// The control memory is host memory that all processes share and all GPUs map, with an entry per
// rank:
//
//   part       writer                 holds
//   abort      any rank's host        not 0: kernels of the rank that wait give up
//   present    the rank's host        1 while it, or a kernel of its, may touch peers' memory
//   reports    the rank's kernels     by channel: why it gave up
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/base/limits.hpp"
#include "comm/device/backend.hpp"
#include "comm/device/device_engine.hpp"
#include "transport/cuda_ipc/segments.hpp"
#include "transport/memory/segment.hpp"

namespace rondo::device {

inline constexpr int kMaxMessageChannels = 4;
inline constexpr int kMaxBlocks = base::kMaxChannels + kMaxMessageChannels;

struct alignas(128) RankControl {
  uint64_t abort;
  alignas(128) uint64_t present;
  alignas(128) engine::DeviceReport reports[kMaxBlocks];
};

/// Thread-safe.
class ProcessMemory {
 public:
  static size_t control_bytes(int ranks) {
    return sizeof(RankControl) * static_cast<size_t>(ranks);
  }

  /// This process's memory of the communicator with that control memory; made by the first call.
  static Result<std::shared_ptr<ProcessMemory>> open(std::shared_ptr<CudaCalls> cuda,
                                                     transport::Segment control, int ranks);
  ~ProcessMemory();  // REQUIRES: no rank is present
  ProcessMemory(const ProcessMemory&) = delete;
  ProcessMemory& operator=(const ProcessMemory&) = delete;

  void keep(std::unique_ptr<transport::cuda_ipc::Segments> segments);
  /// Maps host memory that all ranks share for this process's GPUs, in the first call.
  Status map(transport::Segment memory);

  int ranks() const { return ranks_; }
  RankControl& control(int rank) const {
    return reinterpret_cast<RankControl*>(control_.base())[rank];
  }
  /// All ranks' kernels end. Relaxed: kernels poll the word, and nothing else depends on it.
  void raise_aborts() const;
  /// Release: after all accesses of this rank's kernels. Pairs with is_empty().
  void set_present(int rank, bool present) const;
  /// The report of the kernel of that rank's channel; null: none yet.
  const engine::DeviceReport* report(int rank, int channel) const;

 private:
  ProcessMemory(std::shared_ptr<CudaCalls> cuda, transport::Segment control, int ranks)
      : cuda_(std::move(cuda)), control_(std::move(control)), ranks_(ranks) {}
  bool is_empty() const;
  /// What all ranks of this process share.
  struct Owner {
    Owner() = default;
    ~Owner();
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ProcessMemory* memory = nullptr;
  };
  static void release(ProcessMemory* memory);

  const std::shared_ptr<CudaCalls> cuda_;
  const transport::Segment control_;
  const int ranks_;
  bool is_mapped_ = false;  // the control memory, for GPUs
  std::mutex mutex_;
  transport::Segment mapped_;
  std::vector<std::unique_ptr<transport::cuda_ipc::Segments>> segments_;
};

}  // namespace rondo::device
