// What outlives a rank of a device communicator: memory that peers' kernels may still touch when
// the rank itself is through. It belongs to all ranks of a process together, ends after the last of
// them, and not before ranks of other processes have let go.
//
// The control memory is the host's, shared by all processes and mapped by all GPUs; an entry a
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

#include "comm/device/backend.hpp"
#include "comm/engine/device_engine.hpp"
#include "transport/cuda_ipc/segments.hpp"
#include "transport/shm/segment.hpp"

namespace rondo::device {

inline constexpr int kMaxMessageChannels = 4;
inline constexpr int kMaxChannels = 64 + kMaxMessageChannels;

struct alignas(128) RankControl {
  uint64_t abort;
  alignas(128) uint64_t present;
  alignas(128) engine::DeviceReport reports[kMaxChannels];
};

/// Thread-safe, apart from segments that it gives away.
class Premises {
 public:
  static size_t control_bytes(int ranks) {
    return sizeof(RankControl) * static_cast<size_t>(ranks);
  }

  /// This process' part of the communicator with that control memory.
  static Result<std::shared_ptr<Premises>> enter(std::shared_ptr<CudaCalls> cuda,
                                                 transport::Segment control, int ranks);
  ~Premises();  // REQUIRES: nobody is present
  Premises(const Premises&) = delete;
  Premises& operator=(const Premises&) = delete;

  void keep(std::unique_ptr<transport::cuda_ipc::Segments> segments);
  /// Maps host memory that all ranks share for this process' GPUs; its first rank does it for all.
  Status map(transport::Segment memory);

  int ranks() const { return ranks_; }
  RankControl& control(int rank) const {
    return reinterpret_cast<RankControl*>(control_.base())[rank];
  }
  /// Relaxed: a word on its own, which kernels poll. All ranks' kernels give up.
  void raise_aborts() const;
  /// Release: what this rank's kernels did comes before. Pairs with is_empty().
  void set_present(int rank, bool present) const;
  /// What a kernel of the rank's channel has reported; null: nothing yet.
  const engine::DeviceReport* report(int rank, int channel) const;

 private:
  Premises(std::shared_ptr<CudaCalls> cuda, transport::Segment control, int ranks)
      : cuda_(std::move(cuda)), control_(std::move(control)), ranks_(ranks) {}
  bool is_empty() const;
  static void leave(Premises* premises);

  const std::shared_ptr<CudaCalls> cuda_;
  const transport::Segment control_;
  const int ranks_;
  std::mutex mutex_;
  transport::Segment mapped_;
  std::vector<std::unique_ptr<transport::cuda_ipc::Segments>> segments_;
};

}  // namespace rondo::device
