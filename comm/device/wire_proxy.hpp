// Between a rank's kernels and ranks of other hosts. The kernels write slots and counters for such
// ranks into one segment in pinned memory, `outbound`, and read what these have written for them in
// another, `inbound` (channel_memory.hpp). The links' slots lie in the two segments, so a thread only
// has to see what has changed: it publishes slots that kernels have filled, and tells them of those
// that have come and of those that are free again. It calls no function of CUDA's, so nothing that
// an application does can hold it up, and a replayed graph needs nobody's help.
//
// NCCL's proxy threads do the same.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/device/backend.hpp"
#include "rondo/status.hpp"
#include "transport/cuda_ipc/layout.hpp"
#include "transport/link.hpp"
#include "transport/ucx/factory.hpp"

namespace rondo::device {

struct ProxySettings {
  transport::cuda_ipc::SegmentSizes
      shape;                      // `depth` is that of the links: transport::ucx::slots_of()
  std::vector<int> far;           // ranks of other hosts
  std::byte *inbound, *outbound;  // zeroed; outlive the proxy
  /// With links to them in these segments (slot_places()), a channel for each of the shape's.
  std::unique_ptr<transport::Transport> transport;
  /// By GPUDirect: where the slots lie, which UCX registers with the network, and whether kernels see
  /// payloads that have come only after a flush. Else null.
  CudaCalls* cuda = nullptr;
  int device = 0;
  bool flushes = false;
  /// Looks for errors of the communicator, now and then; after one the thread carries no more.
  std::function<Status()> look;
  /// The first link has failed. A peer that has ended may be one that nobody needs any more, so the
  /// thread goes on with the others (kPeerDied).
  std::function<void(const Status&)> lose;
};

class WireProxy {
 public:
  /// Bytes before each slot, for SegmentSizes::slot_gap.
  static constexpr size_t kGap = transport::cuda_ipc::kLine;
  /// Where the transport's slots lie: in such segments, or only their slots (DeviceLinks).
  static transport::ucx::SlotPlaces slot_places(const transport::cuda_ipc::SegmentSizes& shape,
                                                std::byte* inbound, std::byte* outbound);

  /// kResourceExhausted: no thread.
  static Result<std::unique_ptr<WireProxy>> start(ProxySettings settings);
  ~WireProxy();
  WireProxy(const WireProxy&) = delete;
  WireProxy& operator=(const WireProxy&) = delete;

  /// Waits until peers no longer need this rank for what its kernels have left, at most that long, or
  /// until the communicator has failed; then nothing is carried any more. REQUIRES: no kernel of this
  /// rank runs.
  void finish(int64_t longest_ns);
  /// A kernel will soon have something to carry. Any thread.
  void wake();

 private:
  struct WireLink {
    transport::Sender* sender;
    transport::Receiver* receiver;
    // The kernels' words, and the proxy's.
    const transport::cuda_ipc::InboxLine* filled;
    const transport::cuda_ipc::OutboxLine* emptied;
    transport::cuda_ipc::InboxLine* come;
    transport::cuda_ipc::OutboxLine* freed;
    uint64_t published = 0, reusable = 0;  // of the slots that kernels fill
    uint64_t arrived = 0, released = 0;    // of those that they read
    bool reads = false;                    // a kernel has awaited a slot
  };

  explicit WireProxy(ProxySettings settings);
  void work();
  void carry_on();
  bool carry();
  void note(const Status& failed);
  /// Ends the thread, whatever is left. Once it has ended, nothing happens.
  void halt();
  void await_end();
  static void halt_all();
  static bool carry_out(WireLink& link, uint32_t depth);
  bool carry_in(WireLink& link, uint32_t depth);
  bool owes();
  void rest(int64_t idle_ns);

  ProxySettings settings_;
  std::vector<WireLink> links_;
  Status lost_;  // the thread's, and since when
  int64_t lost_ns_ = 0;
  std::atomic<bool> halted_{false}, woken_{false};
  std::atomic<int64_t> ends_ns_{0};  // when the thread ends at the latest; 0: nobody knows
  std::mutex mutex_, ending_;
  std::condition_variable changed_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace rondo::device
