// One rank of a communicator on a GPU: turns operations into launches on the caller's stream, and
// kernels' reports into the error that all ranks return. Never waits for a peer, and for its own
// GPU only where a contract below says so.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/bootstrap/session/bootstrap.hpp"
#include "comm/control/wire_to_hosts.hpp"
#include "comm/device/backend.hpp"
#include "comm/device/device_group.hpp"
#include "comm/device/opened_device.hpp"
#include "comm/device/process_memory.hpp"
#include "comm/device/programs.hpp"
#include "comm/device/registrations.hpp"
#include "comm/device/residency.hpp"
#include "comm/device/wire_proxy.hpp"
#include "comm/engine/operation.hpp"
#include "comm/health/watch.hpp"
#include "comm/host/lanes.hpp"
#include "comm/tuner/profile.hpp"
#include "transport/cuda_ipc/layout.hpp"
#include "transport/cuda_ipc/placement.hpp"
#include "transport/cuda_ipc/segments.hpp"

namespace rondo::device {

class DeviceWait;

/// The same on every rank.
struct DeviceSettings {
  int channels;                             // 0: as many as leave room, up to max_channels
  int max_channels;                         // 0: tuner::most_channels()
  uint32_t slots;                           // 0: the profile's
  size_t slot_bytes;                        // likewise
  std::optional<tuner::LinkProfile> links;  // given by a file; else a built-in one
  std::vector<DeviceFacts> facts;           // of all ranks
  DeviceReach reach;                        // what they all reach
};

/// Thread rule: the communicator's, apart from check() and abort().
class DeviceRunner {
 public:
  /// Every rank calls it with the same `control`, zeroed memory of ProcessMemory::control_bytes(),
  /// and may be used once all ranks have met again. Takes one exchange. The other references outlive
  /// it.
  static Result<std::unique_ptr<DeviceRunner>> create(comm::Bootstrap& bootstrap,
                                                      board::Board& board, board::Watch& watch,
                                                      transport::Segment control,
                                                      OpenedDevice opened,
                                                      const DeviceSettings& setup);
  /// Waits for this rank's kernels, at most the longest wait, then aborts them and waits a few
  /// seconds more. If they do not end, what they use is never freed.
  ~DeviceRunner();
  DeviceRunner(const DeviceRunner&) = delete;
  DeviceRunner& operator=(const DeviceRunner&) = delete;
  void set_longest_wait(int64_t ns) { longest_wait_ns_ = ns; }

  const transport::cuda_ipc::SegmentSizes& shape() const { return shape_; }
  /// So many slots of a link are free if its reader has taken all.
  uint32_t depth() const { return profile_.slots; }
  const base::HostMap& hosts() const { return bootstrap_.hosts(); }
  /// Of collectives.
  int channels() const { return static_cast<int>(shape_.channels - shape_.message_channels); }
  const tuner::LinkProfile& profile() const { return profile_; }
  /// Whether peers can access any buffer, because they are threads of one process.
  bool reaches_buffers() const { return reaches_buffers_; }
  /// Whether peers can be given access to a buffer by registration.
  bool can_register() const { return reach_ != transport::cuda_ipc::Reach::kHost && far_.empty(); }
  Registrations& registrations() { return *registrations_; }
  std::string describe() const;

  /// Adds to the group that run() launches: one launch, as far as it is on one stream and fits. The
  /// operation is the `sequence`-th of this rank; messages come before operations, all in one call.
  /// check() finds what fails after that. An error is the communicator's.
  Status add(const std::list<engine::Transfer>& messages);
  /// Before a group: makes room for the programs of all its operations, as far as possible. Unless
  /// all operations are captured it may wait for this rank's launches, at most the first one's
  /// timeout. An error is the communicator's.
  Status make_room(const std::list<engine::Operation>& operations);
  Status add(const engine::Operation& operation, uint64_t sequence);
  Status run();
  /// Why a call on that stream is refused, else ok. A refusal is no failure of the communicator.
  Status refusal(void* stream) const;
  /// The same of a group's messages.
  Status refusal(const std::list<engine::Transfer>& messages) const;

  /// The communicator's error, one that kernels have reported included, which is raised on the
  /// board. `thorough`: also asks CUDA, and looks for ended processes. Any thread.
  Status check(bool thorough);
  /// Whether all kernels have, for certain: nobody tells of those in graphs.
  bool has_ended() const;
  /// Ends the waits of all ranks' kernels. Any thread.
  void abort() const { memory_->raise_aborts(); }
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  DeviceRunner(GpuBackend backend, comm::Bootstrap& bootstrap, board::Board& board,
               board::Watch& watch, int device)
      : backend_(std::move(backend)),
        cuda_(*backend_.cuda),
        bootstrap_(bootstrap),
        board_(board),
        watch_(watch),
        device_(device) {}
  Status create_streams();
  Status launch_once();
  Status set_up(transport::Segment control, const DeviceSettings& setup);
  Status settle(const DeviceSettings& setup,
                std::span<const transport::cuda_ipc::DevicePlace> places, int at_once);
  Result<std::unique_ptr<PieceExchange>> connect(
      std::span<const transport::cuda_ipc::DevicePlace> places, bool gpu_direct);
  Status connect_segments(std::vector<transport::cuda_ipc::Offer> offers);
  size_t host_stride() const;
  Status connect_through_host(transport::Segment memory);
  Status open_wire(comm::WireToHosts& wire, bool gpu_direct);
  Status start_proxy(std::unique_ptr<transport::Transport> transport);
  std::byte* slots_of(std::byte* segment, std::byte* slots) const;
  /// The proxy's.
  Status look_after_wire();
  void lose_wire(const Status& why);
  /// Raises the error that a link to another host has ended with. REQUIRES: has_lost_.
  Status explain_lost();
  struct Bytes {
    const std::byte *begin, *end;
  };
  Status put(const engine::Operation& operation, uint64_t sequence);
  // device_runner_copies.cpp: an operation by copies, all of it launched when they return.
  Status put_copies(const engine::Operation& operation, uint64_t sequence);
  struct Copies;
  Result<Copies> find_copies(const engine::Operation& operation);
  struct Copy;
  /// In order. An error: a peer has not registered what this rank would fetch; nothing is launched
  /// then.
  Result<std::vector<Copy>> list_copies(const engine::Operation& operation, const Copies& copies);
  Status launch_barrier(const engine::Operation& operation, uint64_t sequence,
                        const Copies* symmetric);
  Status enqueue_copy(const Copy& copy, Stream stream);
  /// Whether the operation touches buffers that the begun launch writes, or writes buffers that it
  /// reads. Channels proceed to the next operation independently, so one launch would not order the
  /// two.
  bool must_wait_for_begun(Bytes in, Bytes out) const;
  /// Begins a launch on the stream, unless one is begun there and has room.
  Status begin_launch(void* stream);
  Status launch();
  /// Waits while too many launches are in flight.
  Status keep_bounded(Stream stream);
  /// What an operation may follow: the plan, and another one if its ranks ask each other which.
  struct Programmed {
    const Uploaded* plan;
    const Uploaded* staged;  // null: they do not
  };
  Result<Programmed> upload(const engine::Operation& operation);
  Status need_barrier();
  Result<Programmed> find_barrier(bool captured);
  Result<Programmed> find_programs(const engine::Operation& operation, bool captured);
  /// Whether the ranks ask each other, on every rank alike.
  bool asks(const engine::Prepared& prepared) const {
    return (spans_devices_ || !reaches_buffers_) && prepared.direct != nullptr;
  }
  struct ForPeers {
    bool all;
    transport::cuda_ipc::RegisteredIn registrations{};
  };
  /// Whether peers can access the buffers of an operation that they access in place; an error if
  /// they must.
  Result<ForPeers> are_for_peers(const engine::Operation& operation);
  Status explain_slots(const engine::Prepared& prepared);
  /// What no other stream has, or none else within this capture (0: it is not captured).
  Result<uint64_t> identify(Stream stream, uint64_t capture) const;
  /// Makes the stream wait for this rank's last operation on any stream; graphs are ordered
  /// separately.
  Status follow(Stream stream, uint64_t identity, uint64_t capture);
  Result<bool> is_idle() const;
  /// False: not idle within that time, or, unless `despite_errors`, the communicator has failed.
  /// With `device`, replays of graphs count too.
  bool await_idle(int64_t longest_ns, bool despite_errors, DeviceWait* device = nullptr) const;
  /// Until launches have ended; false: not within that time. An error is the communicator's.
  Result<bool> await_launches(int64_t longest_ns) const;
  /// While kernels run: the error if a rank for which they may wait has ended or left.
  Status find_absent(uint64_t sequence);
  /// From now on, a thread looks for errors, also while the rank only replays graphs.
  Status watch_replays();
  void look_after_replays();
  /// The error if a rank has ended without leaving; `meanwhile`: what this rank was doing.
  Status find_dead(std::string_view meanwhile);
  /// Raises it on the board, and ends the waits of all ranks' kernels.
  Status raise(const Status& status) const;
  /// The same of what went wrong on this rank's GPU, by its name.
  Status raise_own(const Status& status) const;

  const GpuBackend backend_;
  CudaCalls& cuda_;
  comm::Bootstrap& bootstrap_;
  board::Board& board_;
  board::Watch& watch_;
  const int device_;
  transport::cuda_ipc::SegmentSizes shape_;
  tuner::LinkProfile profile_;
  transport::cuda_ipc::Reach reach_{};  // the slowest way between two ranks
  bool reaches_buffers_ = true;
  bool shares_device_ = false;  // with another rank of this process
  bool spans_devices_ = false;  // buffers are within reach, on several GPUs
  bool has_told_of_slots_ = false;
  Claim claim_;
  std::shared_ptr<ProcessMemory> memory_;
  transport::cuda_ipc::Segments* segments_ = nullptr;   // kept by memory_; null: in host memory
  std::vector<std::byte*> bases_;                       // by rank: its segment; null: far
  std::vector<int> far_;                                // ranks of other hosts
  std::byte *inbound_ = nullptr, *outbound_ = nullptr;  // for these
  std::byte *inbound_slots_ = nullptr, *outbound_slots_ = nullptr;  // likewise, by GPUDirect
  bool is_gpu_direct_ = false;
  Status lost_;  // by the proxy, before it sets has_lost_
  std::atomic<bool> has_lost_{false};
  std::unique_ptr<WireProxy> proxy_;  // likewise
  Stream copies_ = nullptr;
  Event launched_ = nullptr;  // recorded after every launch that is not captured
  Event captured_ = nullptr;  // after every launch that is
  Event copied_ = nullptr;    // after every copy of new programs, on copies_
  Event marks_[2] = {};       // in turn, before every kMarkEvery-th launch that is not
  uint64_t launches_ = 0;     // that are not captured
  std::unique_ptr<Programs> programs_;
  std::unique_ptr<Registrations> registrations_;
  std::shared_ptr<const engine::Prepared> barrier_;  // of copies; null before the first
  int64_t longest_wait_ns_ = 0;

  /// The launch in preparation.
  struct Begun {
    Stream stream;
    uint64_t capture;
    int blocks = 0;
    engine::DeviceGroup group{};
    std::vector<Bytes> read{}, written{};  // what it does with this rank's buffers
  };
  std::optional<Begun> begun_;
  struct Last {
    std::optional<uint64_t> stream;  // its identity
    uint64_t capture = 0;
  };
  Last last_launched_, last_captured_;
  std::atomic<bool> has_launched_{false};
  std::atomic<bool> has_captured_{false};
  std::atomic<uint64_t> sequence_{0};  // of the last operation
  std::atomic<uint64_t> bytes_sent_{0};
  // From the first captured operation on:
  std::mutex replays_mutex_;
  std::condition_variable replays_changed_;
  bool ends_ = false;  // guarded by replays_mutex_
  std::thread replays_watch_;
};

/// Whether copy engines carry the operation out (Algorithm::kCopyEngine).
inline bool is_by_copies(const engine::Prepared& prepared) {
  return prepared.direct != nullptr &&
         algorithms::traits_of(prepared.direct->algorithm).needs.copies;
}

/// The error that the kernels' reports describe: of the rank and the reason that explain most; ok:
/// there is no report. `board` names the calls.
Status explain_reports(const ProcessMemory& memory, uint32_t channels, const board::Board& board,
                       board::Watch& watch);

}  // namespace rondo::device
