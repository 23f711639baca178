// The segments of all ranks, as one rank uses them: its own on its GPU, the others' through peer
// access or CUDA IPC. Made with the communicator, because allocating and importing may wait for
// kernels that run. The caller carries the offers between ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "rondo/status.hpp"
#include "transport/cuda_ipc/cuda_calls.hpp"
#include "transport/cuda_ipc/layout.hpp"
#include "transport/cuda_ipc/placement.hpp"

namespace rondo::transport::cuda_ipc {

/// What the other ranks need to map a rank's segment. Trivially copyable.
struct Offer {
  DevicePlace place;
  std::byte* address;  // in its own process
  bool exported;       // `handle` means something: there are other processes
  IpcHandle handle;
};

/// Not thread-safe. Ends with every kernel that uses it; peers have let go before it is destroyed:
/// to free memory that somebody still imports is undefined.
class Segments {
 public:
  /// Allocates this rank's segment, cleared, on the current device. `exports`: ranks of other
  /// processes will use it. `stream`: one of the caller's own, to clear it; waited for.
  static Result<std::unique_ptr<Segments>> create(std::shared_ptr<CudaCalls> cuda,
                                                  const SegmentSizes& shape,
                                                  const DevicePlace& place, bool exports,
                                                  Stream stream);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  const Offer& offer() const { return offer_; }

  /// Makes everybody's segment usable here but where an offer's `address` is null; offers[rank] is this
  /// rank's own. Once. kUnavailable
  /// where a peer's GPU is out of reach.
  Status connect(std::span<const Offer> offers, uint32_t rank);

  /// By rank, where this rank's kernels find the segments. REQUIRES: connect() was ok.
  std::span<std::byte* const> bases() const { return bases_; }

  /// Closes what was imported, when this rank's kernels have ended; peers' go on with this rank's
  /// own. On the device that it was imported for.
  void let_go();

 private:
  Segments(std::shared_ptr<CudaCalls> cuda, const SegmentSizes& shape)
      : cuda_(std::move(cuda)), shape_(shape) {}
  Result<std::byte*> reach(const Offer& peer, size_t rank);

  // Segments may outlive their rank: the last one of a process frees them.
  const std::shared_ptr<CudaCalls> cuda_;
  const SegmentSizes shape_;
  Offer offer_{};
  std::vector<std::byte*> bases_;
  std::vector<std::byte*> imported_;
};

}  // namespace rondo::transport::cuda_ipc
